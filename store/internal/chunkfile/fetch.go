package chunkfile

import (
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// Transfer returns the parameters for fetching from the blob.
func (f *File) Transfer(flow *transfer.Flow) transfer.Fetch {
	return transfer.Fetch{
		Scheduler: f.set.Scheduler, Blob: f.Layout.From.Digest, Size: f.Layout.From.Size, From: &f.Sources, Flow: flow,
		Received: &f.set.Counts.Received, Corrupt: &f.set.Counts.Corrupt, Log: f.set.Log,
	}
}

// fetch fills buf with group g: with the chunks that are found in objects, whose locations it returns, and with the
// others from the blob. Wrong chunks are fetched again, see transfer.Fetch.Range.
func (f *File) fetch(sl *transfer.Slot, g int, buf []byte, from transfer.Fetch) ([]filetable.Location, error) {
	chunks := f.Layout.of(g)
	found := f.set.Finder.Find(chunks, buf, &f.Sources, f.Layout.Verify)
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
		first = end - 1
		into := buf[run[0].Offset-chunks[0].Offset:]
		at, length := span(run)
		raw, err := into, error(nil)
		if f.Layout.Codec != filetable.CodecNone || !inPlace(run) {
			if raw, err = sl.Scratch(); err != nil {
				return nil, err
			}
		}
		raw = raw[:length:length]
		check := func() error {
			defer sl.Flow().Enter(transfer.Hash)()
			return f.Layout.decode(into, raw, run)
		}
		if length > 0 {
			_, err = from.Range(sl.Context, sl, raw, at, check)
		} else if err = check(); errdefs.IsDataLoss(err) { // zeros, which the table describes wrongly
			err = fmt.Errorf("%w: %w", transfer.ErrWrong, err)
		}
		if err != nil {
			return nil, err
		}
	}
	return found, nil
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
