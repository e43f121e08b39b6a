package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// states returns the blobs of a model that a table of hash states makes readable before they are complete, without
// states.
func (h *Handler) states(_ context.Context, name modelname.Name) ([]wire.HashStates, error) {
	im, err := h.findOne(name)
	if err != nil {
		return nil, err
	}
	return h.stated(im)
}

// hashStates sends the states of one of these blobs.
func (h *Handler) hashStates(ctx context.Context, r wire.HashStatesRequest, out *lines) error {
	name, err := modelname.Parse(r.Name)
	if err != nil {
		return err
	}
	im, err := h.findOne(name)
	if err != nil {
		return err
	}
	all, err := h.stated(im)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Digest == r.Blob {
			if b.States, err = h.statesOf(ctx, im, b, out); err != nil {
				return err
			}
			return out.send(wire.HashStatesEvent{Event: wire.Event{Status: wire.StatusSuccess}, States: &b})
		}
	}
	return fmt.Errorf("%s has no blob %.100q that a table of hash states is for: %w", name, r.Blob, errdefs.ErrNotFound)
}

// stated returns these blobs without states.
func (h *Handler) stated(im store.Image) ([]wire.HashStates, error) {
	t, err := h.Store.Table(im.Table)
	if err != nil {
		return nil, err
	}
	paths := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source != nil {
			paths[f.Source.Blob] = f.Path
		}
	}
	all := []wire.HashStates{}
	for _, b := range t.Windowless() {
		all = append(all, wire.HashStates{Path: paths[b.Digest], Digest: b.Digest, Size: b.Size})
	}
	return all, nil
}

// hashEvery is the interval between lines while a blob is hashed.
const hashEvery = 500 * time.Millisecond

// statesOf returns the states of a blob of an image. Its object is hashed if they were not kept.
func (h *Handler) statesOf(ctx context.Context, im store.Image, b wire.HashStates, out *lines) ([]byte, error) {
	names := registry.Names(im)
	c, err := h.Store.Chain(b.Digest, names)
	if errdefs.IsNotFound(err) {
		var said time.Time
		c, err = h.Store.HashChain(ctx, filetable.Blob{Digest: b.Digest, Size: b.Size}, names, func(done int64) {
			if time.Since(said) >= hashEvery {
				said = time.Now()
				_ = out.send(wire.Event{Status: wire.StatusVerifying, Digest: b.Digest, File: b.Path, Total: b.Size, Completed: done}) // ctx ends with the client
			}
		})
	}
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%s is not complete: download it first, with \"ballast prefetch\": %w", b.Path, err)
	}
	return c, err
}
