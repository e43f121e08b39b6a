package chunkfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestKill checks that after a kill nothing is asked for again, that a reader gets what was synced before it at once,
// and that this is hashed once before the file is complete.
func TestKill(t *testing.T) {
	const groups, size = 64, 32 << 10 // as many as a checkpoint has
	file, m := newBlob(groups, size)
	states(t, &file, m)
	dir := t.TempDir()
	fill := func(s *Set, f *File) {
		if _, err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Background), &Patience{}, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	killed := newSet(t, dir)
	before := bytesRead(t)
	fill(killed, acquire(killed, file, m))
	if n := bytesRead(t) - before; n > size {
		t.Errorf("%d bytes are read from the disk that were just fetched", n)
	}
	killed.Area.Close() // the end of the checkpoint
	s := newSet(t, dir)
	f := acquire(s, file, m)
	before = bytesRead(t)
	if _, err := readAt(t.Context(), f, make([]byte, size), size); err != nil {
		t.Error(err)
	}
	if n := bytesRead(t) - before; n > 2*size {
		t.Errorf("a read of %d bytes reads %d", size, n)
	}
	before = bytesRead(t)
	fill(s, f)
	if n := bytesRead(t) - before; n < groups*size || n > (groups+1)*size {
		t.Errorf("%d bytes of %d are read again", n, groups*size)
	}
	for off, n := range m.asked {
		if n != 1 {
			t.Errorf("bytes at %d were asked for %d times", off, n)
		}
	}
}

// TestSyncAfterFailedCheckpoint checks that a file whose checkpoint failed, after it was found to be right, is not
// taken for synced.
func TestSyncAfterFailedCheckpoint(t *testing.T) {
	disk := disktest.New(t, "ext4", t.TempDir(), 128<<20)
	s := newSet(t, disk.Dir)
	file, m := newBlob(20, 1000)
	f := acquire(s, file, m)
	if _, err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Background), &Patience{}, func() {}); err != nil {
		t.Fatal(err)
	}
	disk.FailWrites(1)
	if err := f.stage.p.Sync("data"); err == nil { // as the checkpoint does
		t.Fatal("the disk did not fail")
	}
	disk.FailWrites(0)
	if err := f.Sync(); !errdefs.IsUnavailable(err) {
		t.Errorf("%d of %d bytes are synced: %v", f.Present(), f.Size, err)
	}
}

// TestHashedBesideTheRest checks that what was synced before a kill is hashed while the rest of the file arrives,
// without the buffers of the download.
func TestHashedBesideTheRest(t *testing.T) {
	const groups, synced, size = 70, 64, 32 << 10
	file, m := newBlob(groups, size)
	states(t, &file, m)
	dir := t.TempDir()
	killed := newSet(t, dir)
	f := acquire(killed, file, m)
	for g := synced - 1; g >= 0; g-- { // backwards, so that nothing is read ahead
		if _, err := readAt(t.Context(), f, make([]byte, size), int64(g*size)); err != nil {
			t.Fatal(err)
		}
	}
	killed.Close()
	killed.Area.Close()
	slow := &blocked{memory: m, ready: make(chan struct{})}
	s := newSet(t, dir)
	f = acquire(s, file, m)
	f.Sources.Set("test", []transfer.Source{{Name: "host/repository", Fetcher: slow}})
	filled := make(chan error, 1)
	go func() {
		_, err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Soon), &Patience{}, func() {})
		filled <- err
	}()
	st, err := f.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.done(st)
	for g := 0; g < synced; {
		select {
		case err := <-filled:
			t.Fatalf("ended before all bytes came: %v", err)
		case <-time.After(time.Millisecond):
		}
		if f.has(st, g, true) {
			g++
		}
	}
	close(slow.ready)
	if err := <-filled; err != nil {
		t.Error(err)
	}
}

// blocked is a memory that answers after ready is closed.
type blocked struct {
	*memory
	ready chan struct{}
}

func (b *blocked) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	select {
	case <-b.ready:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	return b.memory.Fetch(ctx, d, size, off, n)
}

// TestWrongZeros checks that a chunk of zeros, of which the disk has other bytes after a reboot, becomes zeros.
func TestWrongZeros(t *testing.T) {
	const first, size = 32 << 10, staging.ChunkSize // of a group of its own
	file, m := newBlob(1, first)
	file.Size += size
	file.Source.Chunks = append(file.Source.Chunks, filetable.Chunk{Offset: first, Size: size, Digest: digest.FromBytes(make([]byte, size))})
	dir := t.TempDir()
	fetched := newSet(t, dir)
	f := acquire(fetched, file, m)
	if _, err := readAt(t.Context(), f, make([]byte, file.Size), 0); err != nil {
		t.Fatal(err)
	}
	fetched.Close()
	fetched.Area.Close()
	staged := filepath.Join(dir, f.Staged())
	for _, damage := range []struct {
		path  string
		bytes []byte
		off   int64
	}{{staged, []byte("damaged"), first + 5}, {filepath.Join(filepath.Dir(staged), "marks"), []byte{2, 2}, 0}} { // 2: synced before the reboot
		f, err := os.OpenFile(damage.path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(damage.bytes, damage.off)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, size)
	if _, err := readAt(t.Context(), acquire(newSet(t, dir), file, m), got, first); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, size)) {
		t.Errorf("a reader gets %q", bytes.Trim(got, "\x00"))
	}
}

// states adds the states of the digest of a file of newBlob to its chunks.
func states(t *testing.T, file *filetable.File, m *memory) {
	t.Helper()
	chunks, hash := file.Source.Chunks, verify.NewHash()
	for i, ch := range chunks[:len(chunks)-1] {
		hash.Write(m.blob[ch.At:][:ch.Len])
		state, err := hash.State()
		if err != nil {
			t.Fatal(err)
		}
		chunks[i].State = state
	}
}

// bytesRead returns how many bytes the process has read, from wherever.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanf(bytes.NewReader(b), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}
