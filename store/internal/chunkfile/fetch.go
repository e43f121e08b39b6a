package chunkfile

import (
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// ErrChunk means that all sources were tried for a chunk.
var ErrChunk = errors.New("no source has the right bytes")

// transfer returns the parameters for fetching from the blob.
func (f *File) transfer(flow *transfer.Flow) transfer.Fetch {
	return transfer.Fetch{
		Scheduler: f.set.Scheduler, Blob: f.Layout.From.Digest, Size: f.Layout.From.Size,
		From: &f.Sources, Flow: flow, Received: &f.set.Counts.Received,
	}
}

// fetch fills buf with group g, and returns the locations of the chunks that were found in objects.
func (f *File) fetch(sl *transfer.Slot, g int, buf []byte, get transfer.Get) ([]filetable.Location, error) {
	chunks := f.Layout.of(g)
	found := f.set.Finder.Find(chunks, buf, &f.Sources, f.Layout.verify)
	for first := 0; first < len(chunks); first++ {
		if found[first].Object != "" {
			f.set.Counts.Copied.Add(chunks[first].Size)
			continue
		}
		end := first + 1
		for end < len(chunks) && found[end].Object == "" {
			end++
		}
		run := chunks[first:end]
		if err := f.fetchRun(sl, run, buf[run[0].Offset-chunks[0].Offset:], get); err != nil {
			return nil, err
		}
		first = end - 1
	}
	return found, nil
}

// fetchRun fills buf with consecutive chunks. Wrong bytes are fetched again, from another source if
// there is one.
func (f *File) fetchRun(sl *transfer.Slot, run []filetable.Chunk, buf []byte, get transfer.Get) (err error) {
	at, length := span(run)
	raw := buf[:length:length]
	if f.Layout.Codec != filetable.CodecNone || !inPlace(run) {
		if raw, err = sl.Scratch(); err != nil {
			return err
		}
		raw = raw[:length:length]
	}
	var lied []transfer.Source
	for range max(2, len(f.Sources.Order())) {
		var from transfer.Source
		if length > 0 {
			if from, err = get(sl, raw, at); err != nil {
				return err
			}
		}
		leave := sl.Flow().Enter(transfer.Hash)
		err = f.Layout.decode(buf, raw, run)
		if leave(); err == nil || !errdefs.IsDataLoss(err) {
			if err == nil {
				transfer.Convict(f.set.Log, from, lied)
			}
			return err
		}
		lied = append(lied, from)
		f.Sources.Blame(from)
		f.set.Counts.Corrupt.Add(1)
		f.set.Log.Warn("chunk is wrong; trying another source", "blob", f.Layout.From.Digest, "source", from.Name, "offset", at, "size", length, "err", err)
	}
	return fmt.Errorf("%w: %w", ErrChunk, err)
}

// inPlace reports whether uncompressed chunks have the same layout in their blob as in the file.
func inPlace(run []filetable.Chunk) bool {
	for _, ch := range run {
		if ch.Len == 0 || ch.At-run[0].At != ch.Offset-run[0].Offset {
			return false
		}
	}
	return true
}
