package store_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestArchiveLeavesReserve unpacks an archive, whose size nobody knows before, on a disk that it would fill.
func TestArchiveLeavesReserve(t *testing.T) {
	const disk, reserve, step, size = 192 << 20, 96 << 20, 64 << 20, 160 << 20 // bytes; it looks once for each step
	dir := t.TempDir()
	if err := unix.Mount("reserve", dir, "tmpfs", 0, fmt.Sprint("size=", disk)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	free := func() int64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	var archive bytes.Buffer
	zw, err := zstd.NewWriter(&archive)
	if err != nil {
		t.Fatal(err)
	}
	w, part := tar.NewWriter(zw), storetest.Random(1, 16<<10)
	if err := w.WriteHeader(&tar.Header{Name: "w", Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	for range size / len(part) {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, dir, store.Options{Reserve: reserve})
	table := storetest.NewBuilder("x").Unpack(archive.Bytes(), filetable.CodecZstd, "").Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(archive.Bytes()))}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v, want a full disk", err)
	}
	if n := free(); n < reserve-step {
		t.Errorf("%d bytes are free, want %d", n, reserve)
	}
}

// TestClaimedSize: a manifest can say that a blob has any size. Until the disk has room for it, that costs no memory.
func TestClaimedSize(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
	const size = 32 << 40
	d := digest.FromString("no such blob")
	b := storetest.NewBuilder("m").File(filetable.File{Path: "m", Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: d, Source: &filetable.Source{Blob: d, Size: size}})
	b.Table().Blobs = append(b.Table().Blobs, filetable.Blob{Digest: d, Size: size})
	table := b.Put(t, s)
	hold(t, s, table)
	from := storetest.From(storetest.NewFetcher())
	for what, do := range map[string]func() error{
		"hydrate": func() error { return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}) },
		"expose": func() error {
			return s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: from, Wait: true, Probe: true})
		},
		"state": func() error {
			_, err := s.State(t.Context(), table)
			return err
		},
	} {
		n, err := allocated(do)
		if what != "state" && !errdefs.IsResourceExhausted(err) {
			t.Errorf("%s: %v", what, err)
		}
		if n > 16<<20 {
			t.Errorf("%s: %d MiB are allocated", what, n>>20)
		}
	}
}
