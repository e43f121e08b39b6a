package staging_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/storetest"
)

// TestCheckpointBlocksNoWriter checks that while a checkpoint waits for the disk, chunks can be written,
// read and counted, also by the goroutine that started it.
func TestCheckpointBlocksNoWriter(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	root, err := os.OpenRoot(disk.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	area, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	const chunks = 200 // more than the chunks between two checkpoints
	grid := make([]int64, chunks)
	for i := range grid {
		grid[i] = int64(i)
	}
	// FUSE locks the file that it syncs, so the test uses two files.
	pieces := []staging.Piece{{Size: chunks / 2, File: "data"}, {Off: chunks / 2, Size: chunks / 2, File: "more"}}
	p, err := area.Open("x", chunks, pieces, grid)
	if err != nil {
		t.Fatal(err)
	}
	write := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := p.Write(i, []byte{1}); err != nil {
				return err
			}
		}
		return nil
	}
	// Exactly one checkpoint: further writes to the file would wait for the disk.
	storetest.WithinLimit(t, "writing what a checkpoint begins with", func() error { return write(0, 64) })
	if got := <-disk.Syncing; got != "partial/x/data" {
		t.Fatalf("fsync of %s", got)
	}
	storetest.WithinLimit(t, "writing", func() error { return write(chunks/2, chunks) })
	storetest.WithinLimit(t, "reading", func() error { _, err := p.ReadAt(make([]byte, chunks/2), chunks/2); return err })
	storetest.WithinLimit(t, "counting", func() error {
		if n := p.Present(); n != 64+chunks/2 || !p.Has(chunks-1) {
			t.Errorf("%d bytes are there, want %d", n, 64+chunks/2)
		}
		return p.Lost()
	})
	storetest.WithinLimit(t, "opening another", func() error {
		q, err := area.Open("y", chunks, staging.RawPieces(chunks), grid)
		if err != nil {
			return err
		}
		return q.Close()
	})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	disk.Release()
	area.Close()
	marks, err := root.ReadFile("partial/x/marks")
	if n := bytes.Count(marks, []byte{2}); err != nil || n != 64 {
		t.Errorf("%d chunks are marked synced, %v; want 64", n, err)
	}
}
