package admin

import (
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// pinsOf returns the pins that protect the model of im.
func (h *Handler) pinsOf(im store.Image) ([]store.Ref, error) {
	pins := h.Store.Catalog.Refs(modelname.PinPrefix)
	return slices.DeleteFunc(pins, func(p store.Ref) bool { return isIndex(im) || p.Table != im.Table }), nil
}

// pins lists all pins.
func (h *Handler) pins(_ context.Context) ([]wire.Pin, error) {
	pins := h.Store.Catalog.Refs(modelname.PinPrefix)
	return h.sized(pins)
}

// sized returns pins with the sizes of their models.
func (h *Handler) sized(pins []store.Ref) ([]wire.Pin, error) {
	images := h.Store.Catalog.Images()
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
	out := []wire.Pin{}
	for _, p := range pins {
		pin := wire.Pin{Ref: wire.Ref(p), ModelSize: p.Size, Digest: p.Table}
		if im, ok := byTable[p.Table]; ok { // otherwise the image was removed
			pin.ModelSize, pin.Digest = im.Size, modelname.ID(im)
		}
		if now, ok := byRef[modelname.Pinned(p)]; ok && now.Table != p.Table {
			pin.Moved = modelname.ID(now)
		}
		pin.Name = modelname.Pinned(p)
		out = append(out, pin)
	}
	return out, nil
}

// pin pins the model that the name refers to now.
func (h *Handler) pin(_ context.Context, req wire.PinRequest) ([]wire.Pin, error) {
	if err := checkTTL(req.TTL); err != nil {
		return nil, err
	}
	name, err := modelname.Parse(req.Name)
	if err != nil {
		return nil, err
	}
	im, err := h.findOne(name)
	if err != nil {
		return nil, err
	}
	pin := modelname.Pin(modelname.Label(im, name.Ref))
	if err := jobs.AddPin(h.Store, pin, im.Table, expiry(req.TTL), name.Ref); err != nil {
		return nil, err
	}
	p, err := h.Store.Catalog.Ref(pin)
	if err != nil {
		return nil, err
	}
	return h.sized([]store.Ref{p})
}

// unpin removes the pin of a reference, or all pins of the models of a digest. A pin of the same
// model by another reference stays.
func (h *Handler) unpin(_ context.Context, name modelname.Name) ([]wire.Pin, error) {
	if name.IsRef() {
		return h.unpinRef(name)
	}
	found, err := h.find(name)
	pins := slices.DeleteFunc(h.Store.Catalog.Refs(modelname.PinPrefix), func(p store.Ref) bool {
		isOf := func(im store.Image) bool { return !isIndex(im) && im.Table == p.Table }
		return !slices.ContainsFunc(found, isOf) && !name.Matches(p.Table) // which can be all that is known of a model
	})
	if err != nil && len(pins) == 0 {
		return nil, err
	}
	for _, p := range pins {
		if err := h.Store.RemoveRef(p.Name); err != nil {
			return nil, err
		}
	}
	return h.sized(pins)
}

// unpinRef removes the pin of a reference, if there is one. It returns an error if no model has the
// name.
func (h *Handler) unpinRef(name modelname.Name) ([]wire.Pin, error) {
	p, err := h.Store.Catalog.Ref(modelname.Pin(name.Ref.Recorded()))
	if errdefs.IsNotFound(err) {
		_, err = h.find(name)
		return []wire.Pin{}, err
	}
	if err != nil {
		return nil, err
	}
	pins, err := h.sized([]store.Ref{p})
	if err != nil {
		return nil, err
	}
	return pins, h.Store.RemoveRef(p.Name)
}

// expiry returns the end of a lifetime of ttl from now; zero means never.
func expiry(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}
