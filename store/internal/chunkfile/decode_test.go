package chunkfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// streamed compresses p as encoders of streams do: the frame declares a window and not its size.
func streamed(t testing.TB, p []byte, window int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for len(p) > 0 {
		n := min(len(p), 100_000)
		if _, err := w.Write(p[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		p = p[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// random returns n bytes that cannot be compressed.
func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(p) // it returns no error
	return p
}

// firstFound is the Finder of a store that has the first of any chunks.
type firstFound struct{ noObjects }

func (f firstFound) Find(chunks []filetable.Chunk, _ []byte, _ *transfer.Sources, _ func(filetable.Chunk, []byte) error) []filetable.Location {
	found := make([]filetable.Location, len(chunks))
	found[0].Object = chunks[0].Digest
	return found
}

// TestLongChunkAfterFound: a chunk that is longer in its blob than what is left of its group behind a chunk that is
// there is fetched.
func TestLongChunkAfterFound(t *testing.T) {
	m := &memory{blob: make([]byte, filetable.MaxChunkLen), asked: map[int64]int{}}
	s := newSet(t, t.TempDir())
	s.Finder = firstFound{}
	f := acquire(s, filetable.File{Size: 3 << 20, Digest: digest.FromString("file"), Source: &filetable.Source{Codec: filetable.CodecZstd, Chunks: []filetable.Chunk{
		{Size: 2 << 20, Digest: digest.FromString("there"), Len: 100},
		{Offset: 2 << 20, Size: 1 << 20, Digest: digest.FromString("long"), At: 100, Len: filetable.MaxChunkLen - 100},
	}}}, m)
	flow := s.Scheduler.NewFlow(transfer.Background)
	sl, err := s.Scheduler.Buffers.Acquire(t.Context(), flow, "")
	if err != nil {
		t.Fatal(err)
	}
	defer sl.Release()
	if _, err := f.fetch(sl, 0, sl.Buf[:f.Size], f.Transfer(flow)); err == nil || m.asked[100] == 0 {
		t.Errorf("zeros, which are not compressed: %v, after %d requests", err, m.asked[100])
	}
}

// TestForeignWindows decompresses frames with the windows of other writers: Podman's have one of 32 MiB at its
// default level, for chunks of 60 kB too.
func TestForeignWindows(t *testing.T) {
	p := random(600_000)
	for _, window := range []int{4 << 20, 8 << 20, 16 << 20, 32 << 20, filetable.MaxWindow} {
		got := make([]byte, len(p))
		if err := unpackChunk(got, streamed(t, p, window), filetable.CodecZstd); err != nil || !bytes.Equal(got, p) {
			t.Errorf("window of %d MiB: %v", window>>20, err)
		}
	}
	err := unpackChunk(make([]byte, len(p)), streamed(t, p, 2*filetable.MaxWindow), filetable.CodecZstd)
	if !errors.Is(err, ErrUndecodable) || errdefs.IsDataLoss(err) {
		t.Errorf("window of %d MiB: %v; the bytes are right, but not usable", 2*filetable.MaxWindow>>20, err)
	}
}

// TestChunkWithMore decompresses chunks whose frame goes on after them, by a little and by more than a chunk.
func TestChunkWithMore(t *testing.T) {
	p := append(random(300_000), bytes.Repeat([]byte("tar header "), 500_000)...)
	raw := streamed(t, p, 32<<20)
	for _, size := range []int{1, 99_999, 100_000, 100_001, 299_999, 300_000, 4 << 20, len(p)} {
		got := make([]byte, size)
		if err := unpackChunk(got, raw, filetable.CodecZstd); err != nil || !bytes.Equal(got, p[:size]) {
			t.Errorf("the first %d bytes: %v", size, err)
		}
	}
	if err := unpackChunk(make([]byte, len(p)+1), raw, filetable.CodecZstd); !errdefs.IsDataLoss(err) {
		t.Errorf("a chunk longer than its frame: %v", err)
	}
}

// TestHostileFrames decompresses small frames of 128 MiB, of which one says its size.
func TestHostileFrames(t *testing.T) {
	// Blocks of 128 KiB that are one byte in the frame.
	block := []byte{2 | byte(maxBlock<<3&0xff), byte(maxBlock << 3 >> 8 & 0xff), byte(maxBlock << 3 >> 16), 'x'}
	blocks := bytes.Repeat(block, 128<<20/maxBlock)
	for name, header := range map[string][]byte{
		"no size": {0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3}, // a window of 128 MiB
		"size":    binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, 128<<20),
	} {
		raw := append(header, blocks...)
		dst := make([]byte, filetable.MaxChunk)
		_ = unpackChunk(dst, raw, filetable.CodecZstd) // the decoders have their buffers
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := unpackChunk(dst, raw, filetable.CodecZstd)
		runtime.ReadMemStats(&after)
		n := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d KiB for a chunk of %d KiB: %v", name, n>>10, len(dst)>>10, err)
		if n > 2*filetable.MaxChunk {
			t.Errorf("%s: %d MiB of memory for a chunk of %d MiB", name, n>>20, len(dst)>>20)
		}
	}
}
