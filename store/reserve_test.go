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
