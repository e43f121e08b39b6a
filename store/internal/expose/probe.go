package expose

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// parallelProbes limits the files that a probe asks for concurrently.
const parallelProbes = 8

// probe makes the checks of Request.Probe.
func (s *Set) probe(ctx context.Context, table digest.Digest, files []missingFile, o Request) error {
	if err := s.reserve(table, transfer.GroupKey(o.Sources)); err != nil {
		return err
	}
	var largest *missingFile
	asked := map[digest.Digest]*missingFile{} // the largest of each compressed blob
	for i, f := range files {
		if f.layout == nil {
			continue
		}
		if largest == nil || f.file.Size > largest.file.Size {
			largest = &files[i]
		}
		blob := f.layout.From.Digest
		if most := asked[blob]; f.layout.Codec != filetable.CodecNone && (most == nil || f.file.Size > most.file.Size) {
			asked[blob] = &files[i]
		}
	}
	if largest == nil {
		return nil
	}
	asked[largest.layout.From.Digest] = largest
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelProbes)
	for _, f := range asked {
		g.Go(func() error { return s.probeFile(ctx, f, o.View) })
	}
	return g.Wait()
}

// probeFile checks that the sources have the last byte of a blob, or that the beginning of a compressed file can
// be decompressed.
func (s *Set) probeFile(ctx context.Context, f *missingFile, view string) error {
	x := s.exposure(view, f.file.Digest)
	if x == nil || x.file == nil { // an object by now
		return nil
	}
	from := f.layout.From
	var err error
	if f.layout.Codec == filetable.CodecNone {
		var one [1]byte
		fetch := x.file.Transfer(s.Files.Scheduler.NewFlow(transfer.Urgent))
		_, err = fetch.Range(ctx, nil, one[:], from.Size-1, nil)
	} else {
		var done func(error)
		if _, done, err = x.file.Await(ctx, 0, 1); err == nil {
			done(nil)
		}
	}
	switch {
	case errors.Is(err, chunkfile.ErrMoved):
		return nil
	case errors.Is(err, transfer.ErrNoRanges):
		return fmt.Errorf("the registry does not serve ranges of %s: %w", from.Digest, errdefs.ErrFailedPrecondition)
	case errors.Is(err, chunkfile.ErrUndecodable), errors.Is(err, transfer.ErrWrong):
		return fmt.Errorf("layer %s cannot be read by chunks: %v: %w", from.Digest, err, errdefs.ErrFailedPrecondition)
	}
	return err
}
