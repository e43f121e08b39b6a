package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// windowed compresses p in frames that declare windows of these sizes.
func windowed(t testing.TB, p []byte, windows ...int) []byte {
	t.Helper()
	var b bytes.Buffer
	for i, window := range windows {
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		part := p[i*len(p)/len(windows) : (i+1)*len(p)/len(windows)]
		for _, half := range [][]byte{part[:1000], part[1000:]} {
			if _, err := w.Write(half); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil { // the frame does not say its size
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestArchiveWindows unpacks archives with the largest window that stall, of many registries, and those of a victim
// meanwhile: the memory of all windows is limited, and no registry delays archives of others.
func TestArchiveWindows(t *testing.T) {
	const archives = 3 // there are four unpackers
	victims := [][]int{{1 << 20}, {filetable.MaxWindow}, {1 << 20, filetable.MaxWindow}}
	blobs := make([][]byte, archives+len(victims))
	for i := range blobs {
		windows := []int{filetable.MaxWindow}
		if i >= archives {
			windows = victims[i-archives]
		}
		blobs[i] = windowed(t, oneFileTar(t, uint64(i), 5<<20), windows...)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20)) // as the daemon
	debug.FreeOSMemory()                                       // of the encoders
	s := storetest.Open(t, t.TempDir(), store.Options{})
	var peak uint64
	stop := make(chan struct{})
	var sampler, work sync.WaitGroup
	sampler.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	gate := make(chan struct{})
	pull := func(ctx context.Context, i int, allow func(off, n int64) bool) (*storetest.Fetcher, digest.Digest, func() error) {
		blob := blobs[i]
		f := storetest.NewFetcher(blob)
		f.Allow = allow
		table := storetest.NewBuilder(fmt.Sprint(i)).Unpack(blob, filetable.CodecZstd, "").Put(t, s)
		return f, digest.FromBytes(blob), func() error {
			return s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.FromRepository(fmt.Sprintf("r%d.example/model", i), f)})
		}
	}
	for i := range archives {
		f, d, run := pull(t.Context(), i, func(off, _ int64) bool {
			if off > 0 {
				<-gate
			}
			return true
		})
		work.Go(func() {
			if err := run(); err != nil {
				t.Errorf("archive %d: %v", i, err)
			}
		})
		waitFor(t, "the archive begins", func() bool { return f.Calls(d) > 0 })
	}
	for i, windows := range victims {
		soon(t, fmt.Sprintf("pull of an archive with windows of %d", windows), func(ctx context.Context) error {
			_, _, run := pull(ctx, archives+i, nil)
			return run()
		})
	}
	close(gate)
	work.Wait()
	close(stop)
	sampler.Wait()
	for i := range archives + 3 {
		want := storetest.Random(uint64(i), 5<<20)
		if got, err := s.ReadBytes(digest.FromBytes(want), int64(len(want)), nil); err != nil || !bytes.Equal(got, want) {
			t.Errorf("archive %d: %v", i, err)
		}
	}
	t.Logf("%d MiB of heap", peak>>20)
	if peak > 350<<20 { // two of the largest windows, of which one is garbage, and all else
		t.Errorf("%d MiB of heap for %d archives with windows of 128 MiB", peak>>20, archives)
	}
}

// TestTooLargeWindow names the limit.
func TestTooLargeWindow(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	blob := windowed(t, oneFileTar(t, 1, 1<<20), 2*filetable.MaxWindow)
	table := storetest.NewBuilder("x").Unpack(blob, filetable.CodecZstd, "").Put(t, s)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))})
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "a window of more than 128 MiB") {
		t.Errorf("got %v", err)
	}
}

// TestSeekableArchive unpacks an archive in the zstd seekable format, as others write it: in frames that do not follow
// the members, with a table of the frames at the end.
func TestSeekableArchive(t *testing.T) {
	want := storetest.Random(1, 3<<20)
	plain := storetest.Tar(t, []tar.Header{{Name: "a", Mode: 0o644}}, [][]byte{want})
	var blob, table []byte
	for frame := range slices.Chunk(plain, 700_000) {
		p := storetest.Compress(t, frame, filetable.CodecZstd)
		blob = append(blob, p...)
		table = binary.LittleEndian.AppendUint32(table, uint32(len(p)))
		table = binary.LittleEndian.AppendUint32(table, uint32(len(frame)))
	}
	frames := len(table) / 8
	table = binary.LittleEndian.AppendUint32(table, uint32(frames))
	table = append(table, 0, 0xb1, 0xea, 0x92, 0x8f)
	blob = append(blob, 0x5e, 0x2a, 0x4d, 0x18)
	blob = binary.LittleEndian.AppendUint32(blob, uint32(len(table)))
	blob = append(blob, table...)

	s := storetest.Open(t, t.TempDir(), store.Options{})
	d := storetest.NewBuilder("x").Unpack(blob, filetable.CodecZstd, "").Put(t, s)
	if err := s.Hydrate(t.Context(), d, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadBytes(digest.FromBytes(want), int64(len(want)), nil); err != nil || !bytes.Equal(got, want) {
		t.Error(err)
	}
}
