package hydrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// fetch makes the content of target i objects. Of what cannot be read by chunks, although the registry has the
// right bytes, the whole archive is unpacked, or the whole blob is verified by its digest. It calls next when the next
// file can start, see underWay.
func (e *Engine) fetch(ctx context.Context, h *hydration, i int, next func()) error {
	t := &h.targets[i]
	whole := t.whole()
	if whole == nil {
		err := e.fetchTarget(ctx, h, i, t, next)
		if err == nil && t.before != nil {
			err = e.replaced(ctx, t.before)
		}
		return err
	}
	present := func() (bool, error) { return e.hasTarget(t, nil, &h.from) } // unpacked for another target
	if ok, err := present(); ok || err != nil {
		return err
	}
	cause := e.fetchTarget(ctx, h, i, t, next)
	if !errors.Is(cause, chunkfile.ErrUndecodable) && !errors.Is(cause, transfer.ErrWrong) {
		return cause
	}
	if ok, err := present(); ok || err != nil {
		return err
	}
	e.Log.Warn("a layer cannot be read by chunks; it is fetched whole", "digest", whole.Blob.Digest, "err", cause)
	dir := whole.dirs()[0]
	e.Area.Hold(dir)
	defer e.Area.Drop(dir)
	err := e.fetchTarget(ctx, h, i, whole, next)
	if err == nil {
		var ok bool
		if ok, err = present(); err == nil && !ok {
			err = t.wrap(fmt.Errorf("the archive does not have what its table of contents lists: %w", errdefs.ErrInvalidArgument))
		}
	}
	if err != nil {
		return fmt.Errorf("%w (fetched whole, because: %v)", err, cause)
	}
	return e.replaced(ctx, t.Files)
}

// replaced drops what was staged by chunks of files that were then fetched whole.
func (e *Engine) replaced(ctx context.Context, files []ChunkedFile) (err error) {
	for _, f := range files {
		c := e.Files.Acquire(f.File.Digest, f.File.Size, f.File.Path, f.Layout)
		err = errors.Join(err, c.Move())
		e.Files.Release(c)
	}
	if l := files[0].Layout; l.Chained() {
		e.Objects.DoubtChain(ctx, l.From)
	}
	return err
}

// whole returns the archive with the files of a target that are in compressed chunks, or the blob of a file with a
// chain of states that is not part of its table; otherwise nil.
func (t *Target) whole() *Target {
	if len(t.Files) == 0 {
		return nil
	}
	l := t.Files[0].Layout
	if l.Chained() {
		return &Target{Blob: l.From, Name: t.Name, Files: []ChunkedFile{{t.Files[0].File, chunkfile.NewRaw(l.From, l.Group)}}}
	}
	if l.Codec == filetable.CodecNone {
		return nil
	}
	b := filetable.Blob{Digest: l.From.Digest, Size: l.From.Size, Archive: filetable.ArchiveTar, Codec: l.Codec, Layer: l.From.Layer}
	return &Target{Blob: b, Name: t.Name, group: l.Group, pieces: staging.RawPieces(b.Size)}
}

// begun returns targets with the blobs whole that have a chain, and of which bytes were staged without: before it was
// known, or because they could not be fetched by it.
func (e *Engine) begun(targets []Target) []Target {
	for i, t := range targets {
		if len(t.Files) == 0 || !t.Files[0].Layout.Chained() || !e.Begun(t.Files[0].Layout) {
			continue
		}
		targets[i] = *t.whole()
		if e.Area.Has(t.dirs()[0]) {
			targets[i].before = t.Files
		}
	}
	return targets
}

// Begun reports whether bytes of the blob of a layout that is Chained were staged without its chain.
func (e *Engine) Begun(l *chunkfile.Layout) bool {
	raw := chunkfile.NewRaw(l.From, l.Group)
	return e.Area.Marked(raw.Dir(l.From.Digest), l.From.Size, raw.Grid) > 0
}
