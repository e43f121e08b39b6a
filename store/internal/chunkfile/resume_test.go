package chunkfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// TestKill checks that after a kill nothing is asked for again, and that what was synced before it is neither read from
// the disk nor hashed: a reader gets it at once, and the file is complete at once.
func TestKill(t *testing.T) {
	const groups, size = 64, 32 << 10 // as many as a checkpoint has
	file, m := newBlob(groups, size)
	states(t, &file, m)
	dir := t.TempDir()
	fill := func() (*Set, *File) {
		s := newSet(t, dir)
		f := acquire(s, file, m)
		if err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Background), &Patience{}, func() {}); err != nil {
			t.Fatal(err)
		}
		return s, f
	}
	killed, _ := fill()
	killed.Area.Close() // the end of the checkpoint
	before := bytesRead(t)
	_, f := fill()
	if n := bytesRead(t) - before; n > size {
		t.Errorf("%d bytes are read again of %d", n, groups*size)
	}
	before = bytesRead(t)
	if _, err := readAt(t.Context(), f, make([]byte, size), size); err != nil {
		t.Error(err)
	}
	if n := bytesRead(t) - before; n > 2*size {
		t.Errorf("a read of %d bytes reads %d", size, n)
	}
	for off, n := range m.asked {
		if n != 1 {
			t.Errorf("bytes at %d were asked for %d times", off, n)
		}
	}
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
