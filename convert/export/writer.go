package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// again are the retries of a request to the target.
var again = transfer.Retry{Tries: 4, Pause: readPause, Final: func(err error) bool { return !errdefs.IsUnavailable(err) || final(err) }}

// progressEvery is the interval between calls of Options.Progress.
const progressEvery = 200 * time.Millisecond

// A writer writes a plan to a target, or reports what would be written.
type writer struct {
	*job
	dst Target
}

// run writes a plan.
func (w *writer) run(ctx context.Context, p *plan) (*Result, error) {
	byDigest := map[digest.Digest]*item{}
	for _, t := range p.items {
		t.setState(stateWaiting)
		if d := t.desc.Digest; d != "" {
			if t.first = byDigest[d]; t.first == nil {
				byDigest[d] = t
			}
		}
	}
	var err error
	if w.o.DryRun {
		err = w.look(ctx, p.items)
	} else {
		err = w.sendAll(ctx, p.items)
	}
	if err != nil {
		return nil, err
	}
	res := w.result(p.items)
	for _, t := range p.items {
		if t.desc.Digest == "" || t.watched != nil && w.o.DryRun {
			return res, nil // a dry run cannot know more
		}
	}
	docs, err := p.documents(p.items)
	if err != nil {
		return nil, err
	}
	desc := docs.desc()
	res.Manifest, res.MediaType, res.Digest = docs.manifest, desc.MediaType, desc.Digest
	if !w.o.DryRun {
		err = w.finish(ctx, docs, res)
	}
	return res, err
}

// finish writes the documents, the manifest last.
func (w *writer) finish(ctx context.Context, docs documents, res *Result) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, b := range docs.blobs {
		g.Go(func() error { return w.putBytes(gctx, b) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if w.o.Sign != nil {
		if err := w.sign(ctx, docs, res); err != nil {
			return err
		}
	}
	err := w.replaceable(ctx, res.Digest) // again: sending takes hours
	if err == nil {
		err = w.dst.PutManifest(ctx, mediatype.OCIManifest, docs.manifest)
	}
	if err == nil && w.o.Referrer {
		res.Referrer, err = w.refer(ctx, docs)
	}
	return err
}

// replaceable returns errdefs.ErrAlreadyExists if the name of the target has a manifest that must
// not be replaced: that of the source, or one that ballast did not write. by is the digest of the new
// manifest, if it is known.
func (w *writer) replaceable(ctx context.Context, by digest.Digest) error {
	if w.o.Force || w.dst == nil {
		return nil
	}
	p, err := w.dst.Named(ctx)
	if err != nil || p == nil {
		return err
	}
	d, what := digest.FromBytes(p), ""
	m, err := convert.ParseManifest(p)
	switch {
	case d == by:
	case d == w.src.Manifest:
		what = "is the source itself"
	case err != nil || m.Annotations[mediatype.AnnotationOriginDigest] == "":
		what = "has " + d.String() + ", which ballast did not write"
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("%s %s; choose another name, or replace it with --force: %w", w.dst, what, errdefs.ErrAlreadyExists)
}

// refer writes the index with which the converted image refers to its origin. The image itself
// remains, byte for byte, the one that nodes make.
func (w *writer) refer(ctx context.Context, docs documents) (digest.Digest, error) {
	origin := w.src.Model.Table.Origin
	desc, p, err := image.Referrer(origin, w.src.Model.Documents.Manifest, docs.manifest)
	if err != nil {
		return "", err
	}
	return desc.Digest, w.dst.PutReferrer(ctx, origin.Digest, desc, p)
}

// look checks which items the target has.
func (w *writer) look(ctx context.Context, all []*item) error {
	for _, t := range all {
		t.setState(StatePlanned)
		if t.desc.Digest == "" || t.first != nil || w.dst == nil {
			continue
		}
		has, err := w.dst.Has(ctx, t.desc.Digest, t.desc.Size)
		if err != nil {
			return err
		}
		if has {
			t.setState(StatePresent)
		}
	}
	return nil
}

// sendAll sends all items, and reports their progress.
func (w *writer) sendAll(ctx context.Context, all []*item) error {
	stop := make(chan struct{})
	var report sync.WaitGroup
	report.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.o.Progress(progressOf(all))
			case <-stop:
				w.o.Progress(progressOf(all))
				return
			}
		}
	})
	defer report.Wait()
	defer close(stop)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(w.o.Parallel)
	for _, t := range all {
		if t.first != nil {
			continue
		}
		g.Go(func() error {
			if err := w.send(gctx, t); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return nil
		})
	}
	return cmp.Or(g.Wait(), ctx.Err()) // a layout has written all that it could read
}

// send writes one item to the target, unless the target has it.
func (w *writer) send(ctx context.Context, t *item) (err error) {
	open := t.read
	if t.pack != nil {
		if err := w.packItem(ctx, t); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.packed.close()) }()
		open = func(ctx context.Context) (io.ReadCloser, error) {
			t.done.Store(0)
			return contentOf(t.packed.open).counted(&t.done)(ctx, nil)
		}
	}
	state, err := w.have(ctx, t)
	switch {
	case err != nil:
		return err
	case state == "":
		t.setState(stateUploading)
		state, err = w.put(ctx, t, open)
	}
	if err == nil && t.watched != nil && (state != StateUploaded || t.seen.off < t.desc.Size) { // a registry may answer before the end
		t.setState(stateReading)
		err = discard(ctx, open)
	}
	if err == nil {
		t.done.Store(t.bytes())
		t.setState(state)
	}
	return err
}

// packItem makes the bytes of an item.
func (w *writer) packItem(ctx context.Context, t *item) error {
	t.setState(stateReading)
	return again.Do(ctx, func() error {
		t.done.Store(0)
		k, err := t.pack(ctx, &t.done)
		if err != nil {
			return err
		}
		k.desc.MediaType = t.desc.MediaType
		t.packed, t.desc = k, k.desc
		t.done.Store(0)
		t.made.Store(k.desc.Size)
		return nil
	})
}

// have returns how the target got an item without an upload, or "" if it does not have it.
func (w *writer) have(ctx context.Context, t *item) (state string, err error) {
	d := t.desc
	if d.Digest == "" {
		return "", nil
	}
	err = again.Do(ctx, func() error {
		has, err := w.dst.Has(ctx, d.Digest, d.Size)
		if has {
			state = StatePresent
		}
		return err
	})
	return state, err
}

// put writes an item, and returns how. It sets its digest if that is not known.
func (w *writer) put(ctx context.Context, t *item, open Opener) (state string, err error) {
	state = StateUploaded
	err = again.Do(ctx, func() error {
		switch d := t.desc; {
		case d.Digest == "":
			streamed, err := w.dst.PutStream(ctx, d.Size, open)
			if err == nil {
				t.desc.Digest = streamed
			}
			return err
		case t.fromBlob && w.src.Repository != "":
			mounted, err := w.dst.Mount(ctx, d.Digest, d.Size, w.src.Host, w.src.Repository, open)
			if mounted {
				state = StateMounted
			}
			return err
		default:
			return w.dst.Put(ctx, d.Digest, d.Size, open)
		}
	})
	return state, err
}

// putBytes writes a blob that the target may already have.
func (w *writer) putBytes(ctx context.Context, p []byte) error {
	d := ocispec.Descriptor{Digest: digest.FromBytes(p), Size: int64(len(p))}
	return w.send(ctx, &item{desc: d, open: contentOf(opener(p))})
}

// discard reads bytes that are not sent.
func discard(ctx context.Context, open Opener) error {
	r, err := open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.CopyBuffer(io.Discard, r, make([]byte, bufferSize))
	return err
}

// progressOf returns the progress of tasks.
func progressOf(all []*item) []store.Progress {
	var out []store.Progress
	for _, t := range all {
		if t.first != nil {
			continue
		}
		p := store.Progress{Blob: t.key(), Name: t.name, Total: t.bytes(), Done: t.done.Load(), State: t.stateOf()}
		switch p.State {
		case StateUploaded:
			p.State = stateComplete
		case StateMounted:
			p.State = StatePresent
		}
		out = append(out, p)
	}
	return out
}

// result returns the Result of the items.
func (w *writer) result(all []*item) *Result {
	res := &Result{Form: w.o.Form, Losses: w.losses, Layers: []Layer{}}
	for _, t := range all {
		d := t.desc
		res.Layers = append(res.Layers, Layer{Name: t.name, MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, State: t.stateOf()})
		if t.first != nil || d.Size < 0 {
			continue
		}
		res.Size += d.Size
		switch t.stateOf() {
		case StatePresent:
			res.Present += d.Size
		case StateMounted:
			res.Mounted += d.Size
		default:
			res.Sent += d.Size
		}
	}
	return res
}
