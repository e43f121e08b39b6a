package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// pinsOf returns the pins that keep the model of im.
func (h *Handler) pinsOf(ctx context.Context, im store.Image) ([]store.Ref, error) {
	pins, err := h.Store.Refs(ctx, pinPrefix)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pins, func(p store.Ref) bool { return isIndex(im) || p.Table != im.Table }), nil
}

// pins lists all pins.
func (h *Handler) pins(r *http.Request) (any, error) {
	pins, err := h.Store.Refs(r.Context(), pinPrefix)
	if err != nil {
		return nil, err
	}
	return h.sized(r.Context(), pins)
}

// sized returns pins with what is known of their models.
func (h *Handler) sized(ctx context.Context, pins []store.Ref) ([]Pin, error) {
	images, err := h.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	byTable, byRef := map[digest.Digest]store.Image{}, map[string]store.Image{}
	for _, im := range images {
		if isIndex(im) {
			continue // a pin of one of its models has its name
		}
		byTable[im.Table] = im
		for _, ref := range im.Refs {
			byRef[ref] = im
		}
	}
	out := []Pin{}
	for _, p := range pins {
		pin := Pin{Ref: p, ModelSize: p.Size, Digest: p.Table}
		if im, ok := byTable[p.Table]; ok { // else the image was collected
			pin.ModelSize, pin.Digest = im.Size, (&Image{Image: im}).ID()
		}
		if now, ok := byRef[PinnedRef(p)]; ok && now.Table != p.Table {
			pin.Moved = (&Image{Image: now}).ID()
		}
		out = append(out, pin)
	}
	return out, nil
}

// pin pins the model that the name stands for now.
func (h *Handler) pin(r *http.Request) (any, error) {
	ctx := r.Context()
	var req PinRequest
	if err := decodeBody(r, &req); err != nil {
		return nil, err
	}
	if req.TTL < 0 {
		return nil, fmt.Errorf("ttl %v is negative: %w", req.TTL, errdefs.ErrInvalidArgument)
	}
	im, err := findOne(ctx, h.Store, req.Name)
	if err != nil {
		return nil, err
	}
	name := PinName(Label(im, req.Name))
	ref, _ := resolve.ParseRef(req.Name) // or it is a digest
	if err := AddPin(ctx, h.Store, name, im.Table, expiry(req.TTL), ref); err != nil {
		return nil, err
	}
	p, err := h.Store.Ref(ctx, name)
	if err != nil {
		return nil, err
	}
	return h.sized(ctx, []store.Ref{p})
}

// AddPin pins a table that was asked for by a reference, from which it is fetched again if need be.
// With the zero Ref that stays what it was.
func AddPin(ctx context.Context, s *store.Store, name string, table digest.Digest, expires time.Time, ref remote.Ref) error {
	if err := s.AddRef(ctx, name, table, expires); err != nil || ref == (remote.Ref{}) {
		return err
	}
	return s.SetRefSources(ctx, name, []string{ref.Name()})
}

// Label returns the reference under which im is pinned when it was asked for by name: that
// itself, or one of im's if it is a digest.
func Label(im store.Image, name string) string {
	if ref, err := resolve.ParseRef(name); err == nil {
		return stored(ref)
	}
	if len(im.Refs) > 0 {
		return im.Refs[0]
	}
	return im.Manifest.String()
}

// unpin removes the pin of a reference, or all pins of the models that a digest stands for: who pinned the
// same model by another name still wants it.
func (h *Handler) unpin(r *http.Request) (any, error) {
	ctx := r.Context()
	name := r.FormValue("name")
	if ref, err := resolve.ParseRef(name); err == nil {
		return h.unpinRef(ctx, ref, name)
	}
	found, err := find(ctx, h.Store, name)
	if err != nil {
		return nil, err
	}
	var pins []store.Ref
	for _, im := range found {
		of, err := h.pinsOf(ctx, im)
		if err != nil {
			return nil, err
		}
		for _, p := range of {
			if err := h.Store.RemoveRef(ctx, p.Name); err != nil {
				return nil, err
			}
			pins = append(pins, p)
		}
	}
	return h.sized(ctx, pins)
}

// unpinRef removes the pin of a reference, if there is one. A name that nothing is known by is an error.
func (h *Handler) unpinRef(ctx context.Context, ref remote.Ref, name string) ([]Pin, error) {
	p, err := h.Store.Ref(ctx, PinName(stored(ref)))
	if errdefs.IsNotFound(err) {
		_, err = find(ctx, h.Store, name)
		return []Pin{}, err
	}
	if err != nil {
		return nil, err
	}
	pins, err := h.sized(ctx, []store.Ref{p})
	if err != nil {
		return nil, err
	}
	return pins, h.Store.RemoveRef(ctx, p.Name)
}

// expiry returns when something ends that holds for ttl from now; zero means never.
func expiry(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}
