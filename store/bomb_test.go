package store_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// repeated returns a compressed archive of one file, with n mebibytes of one character.
func repeated(t *testing.T, codec filetable.Codec, n int, char byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var zw io.WriteCloser = gzip.NewWriter(&b)
	if codec == filetable.CodecZstd {
		var err error
		if zw, err = zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
			t.Fatal(err)
		}
	}
	w := tar.NewWriter(zw)
	if err := w.WriteHeader(&tar.Header{Name: "w", Mode: 0o644, Size: int64(n) << 20, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	part := bytes.Repeat([]byte{char}, 1<<20)
	for range n {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDecompressionBombEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks more than a GiB")
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	bomb := repeated(t, filetable.CodecZstd, 3<<10, 'x')
	table := storetest.NewBuilder("x").Unpack(bomb, filetable.CodecZstd, "").Put(t, s)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(bomb))})
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "1 GiB and 100 times its size, without zeros") {
		t.Errorf("got %v, want the limit", err)
	}
	if got := leftovers(t, s); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

// TestZerosInArchives unpacks what people test a registry with: a large file of zeros. It is no bomb, and takes no disk
// space; its size counts all the same for the quota and the reserve.
func TestZerosInArchives(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks more than a GiB")
	}
	const size = 1280 // MiB, more than the limit for data
	for _, codec := range []filetable.Codec{filetable.CodecGzip, filetable.CodecZstd} {
		blob := repeated(t, codec, size, 0)
		if limit := 1<<30 + 100*len(blob); limit >= size<<20 {
			t.Fatalf("%s: %d bytes of zeros are below the limit of %d", codec, size<<20, limit)
		}
		hydrate := func(dir string, o store.Options) (*store.Store, []filetable.File, error) {
			s := storetest.Open(t, dir, o)
			table := storetest.NewBuilder("x").Unpack(blob, codec, "").Put(t, s)
			err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))})
			if err != nil {
				return s, nil, err
			}
			files, err := s.Views.Files(table)
			return s, files, err
		}
		dir := t.TempDir()
		before := used(t, dir)
		s, files, err := hydrate(dir, store.Options{})
		if err != nil || len(files) != 1 || files[0].Size != size<<20 {
			t.Fatalf("%s: %v, %v", codec, files, err)
		}
		p := bytes.Repeat([]byte("x"), 1<<20)
		if _, err := s.Views.View("").ReadAt(t.Context(), files[0].Digest, p, size<<20-1<<20); err != nil || !bytes.Equal(p, make([]byte, 1<<20)) {
			t.Errorf("%s: the end: %v", codec, err)
		}
		if n := used(t, dir) - before; n > 64<<20 {
			t.Errorf("%s: %d bytes on disk", codec, n)
		}
		if codec == filetable.CodecGzip {
			continue
		}
		quota, _, err := hydrate(t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: 512 << 20}})
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "quota") {
			t.Errorf("%s: beyond the quota: %v", codec, err)
		}
		if u, err := quota.Usage(); err != nil || u.Unique > 64<<10 || u.Partial > 16<<20 {
			t.Errorf("%s: left over: %+v, %v", codec, u, err)
		}
	}
}

// TestArchivesShareQuota unpacks archives of which each fits into the quota: all of them count, and what other downloads
// have reserved.
func TestArchivesShareQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks half a GiB")
	}
	const quota = 300 << 20
	open := func() *store.Store {
		return storetest.Open(t, t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: quota}})
	}
	unpack := func(s *store.Store, n int) error {
		b := storetest.NewBuilder("x")
		var blobs [][]byte
		for i := range n {
			blobs = append(blobs, repeated(t, filetable.CodecZstd, 94, 'a'+byte(i)))
			b.Unpack(blobs[i], filetable.CodecZstd, fmt.Sprintf("%d/w", i))
		}
		table := b.Put(t, s)
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blobs...))})
	}
	s := open()
	if err := unpack(s, 6); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("six archives: %v", err)
	}
	if err := unpack(open(), 3); err != nil {
		t.Errorf("three archives: %v", err)
	}
	s = open()
	large := make([]byte, 200<<20)
	waiting := storetest.NewFetcher(large)
	asked := make(chan struct{})
	var once sync.Once
	waiting.Delay = func(ctx context.Context) {
		once.Do(func() { close(asked) })
		<-ctx.Done()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	table := storetest.NewBuilder("x").Raw("w", large, 0o644).Put(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(waiting)}) }()
	<-asked
	if err := unpack(s, 3); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("three archives beside a reservation: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestUnpackedCountsOnce unpacks an archive for which the quota is just large enough: what it has unpacked is staged, and
// is no longer reserved.
func TestUnpackedCountsOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks a quarter of a GiB")
	}
	const weights, size = 32, 264 // MiB: without the rest, which compresses, and with it
	var b bytes.Buffer
	zw, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zw)
	if err := w.WriteHeader(&tar.Header{Name: "w", Mode: 0o644, Size: size << 20}); err != nil {
		t.Fatal(err)
	}
	for i := range size {
		part := bytes.Repeat([]byte("x"), 1<<20)
		if i < weights {
			part = storetest.Random(uint64(i), 1<<20)
		}
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: int64(b.Len()) + (size+8)<<20}})
	table := storetest.NewBuilder("x").Unpack(b.Bytes(), filetable.CodecZstd, "").Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(b.Bytes()))}); err != nil {
		t.Error(err)
	}
}

// used returns the bytes that a tmpfs at dir, which it mounts the first time, has allocated.
func used(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		if err := unix.Mount("zeros", dir, "tmpfs", 0, fmt.Sprint("size=", 2<<30)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
