package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxConfig is the largest image config that is shown, in bytes.
const maxConfig = 8 << 20 // 8 MiB

// snapshotPrefix is what the names of references that are snapshots start with.
const snapshotPrefix = "snapshot/"

// images lists all images with their state.
func (h *Handler) images(r *http.Request) (any, error) {
	ctx := r.Context()
	all, err := h.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Image, 0, len(all))
	refs, err := h.Store.Refs(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, im := range all {
		v, _, err := h.state(ctx, im, refs)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// state returns im with its state, and its files if it is complete.
func (h *Handler) state(ctx context.Context, im store.Image, refs []store.Ref) (Image, []store.File, error) {
	v := Image{Image: im, State: StateComplete}
	for _, ref := range refs {
		switch {
		case ref.Table != im.Table:
		case strings.HasPrefix(ref.Name, pinPrefix):
			v.Pins = append(v.Pins, ref)
		case strings.HasPrefix(ref.Name, snapshotPrefix):
			v.Snapshots++
		}
	}
	if isIndex(im) {
		v.State, v.Pins, v.Snapshots = StateIndex, nil, 0
		return v, nil, nil
	}
	files, err := h.Store.Files(ctx, im.Table)
	switch {
	case err == nil:
		return v, files, nil
	case !errdefs.IsUnavailable(err) && !errdefs.IsNotFound(err):
		return Image{}, nil, err
	}
	v.State = StatePartial
	for _, j := range h.Jobs() {
		if j.Ended.IsZero() && slices.Contains(im.Refs, j.Ref) {
			v.State = StatePulling
		}
	}
	return v, nil, nil
}

// image answers with all that is known of one image.
func (h *Handler) image(r *http.Request) (any, error) {
	ctx := r.Context()
	im, err := findOne(ctx, h.Store, r.FormValue("name"))
	if err != nil {
		return nil, err
	}
	refs, err := h.Store.Refs(ctx, "")
	if err != nil {
		return nil, err
	}
	var d Detail
	if d.Image, d.Files, err = h.state(ctx, im, refs); err != nil {
		return nil, err
	}
	t, err := h.Store.Table(ctx, im.Table)
	if err != nil {
		return nil, err
	}
	d.Blobs = t.Blobs
	if d.Files == nil {
		d.Files = t.Files
	}
	for i := range d.Files {
		d.Files[i].Source = nil // large, and of use to nobody here
	}
	p, err := h.Store.ReadBytes(ctx, im.Config, maxConfig)
	if err == nil && json.Valid(p) {
		d.ConfigJSON = p
	}
	return d, nil
}

// Removed says what a removal took away.
type Removed struct {
	Manifests []digest.Digest `json:"manifests"`          // of images that are forgotten
	Untagged  []string        `json:"untagged,omitempty"` // references of images that have others
}

// removeImage forgets images. By a reference only that is taken from an image that has others.
func (h *Handler) removeImage(r *http.Request) (any, error) {
	ctx := r.Context()
	name := r.FormValue("name")
	found, err := find(ctx, h.Store, name)
	if err != nil {
		return nil, err
	}
	ref := ""
	if r, err := ParseRef(name); err == nil {
		ref = stored(r)
	}
	var out Removed
	for _, im := range found {
		if i := slices.Index(im.Refs, ref); i >= 0 && len(im.Refs) > 1 {
			if err := h.untag(ctx, im, i); err != nil {
				return nil, err
			}
			out.Untagged = append(out.Untagged, ref)
			continue
		}
		entries, err := children(ctx, h.Store, im)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		// Those of an index that nobody has asked for by a tag go with it.
		entries = slices.DeleteFunc(entries, func(c store.Image) bool {
			return slices.ContainsFunc(c.Refs, func(ref string) bool { return !strings.Contains(ref, "@") })
		})
		for _, im := range append(entries, im) {
			if err := h.forget(ctx, im); err != nil {
				return nil, err
			}
			out.Manifests = append(out.Manifests, im.Manifest)
		}
	}
	return out, nil
}

// untag takes the reference im.Refs[i] and its pin from im.
func (h *Handler) untag(ctx context.Context, im store.Image, i int) error {
	ref := im.Refs[i]
	if err := h.Store.RemoveRef(ctx, PinName(ref)); err != nil {
		return err
	}
	im.Refs = slices.Delete(im.Refs, i, i+1)
	if err := h.Store.RemoveImage(ctx, im.Manifest); err != nil {
		return err
	}
	h.Log.Info("reference removed", "ref", ref, "digest", im.Manifest)
	return h.Store.PutImage(ctx, im)
}

// forget removes im and its pins.
func (h *Handler) forget(ctx context.Context, im store.Image) error {
	pins, err := h.pinsOf(ctx, im)
	if err != nil {
		return err
	}
	for _, p := range pins {
		if err := h.Store.RemoveRef(ctx, p.Name); err != nil {
			return err
		}
	}
	if err := h.Store.RemoveImage(ctx, im.Manifest); err != nil {
		return err
	}
	h.Log.Info("model removed", "ref", strings.Join(im.Refs, " "), "digest", im.Manifest)
	return nil
}

func (h *Handler) pinsOf(ctx context.Context, im store.Image) ([]store.Ref, error) {
	pins, err := h.Store.Refs(ctx, pinPrefix)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pins, func(p store.Ref) bool { return p.Table != im.Table }), nil
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
	if err := h.Store.AddRef(ctx, name, im.Table, expiry(req.TTL)); err != nil {
		return nil, err
	}
	p, err := h.Store.Ref(ctx, name)
	return []store.Ref{p}, err
}

// Label returns the reference under which im is pinned when it was asked for by name: that
// itself, or one of im's if it is a digest.
func Label(im store.Image, name string) string {
	if ref, err := ParseRef(name); err == nil {
		return stored(ref)
	}
	if len(im.Refs) > 0 {
		return im.Refs[0]
	}
	return im.Manifest.String()
}

// unpin removes the pins of what the name stands for.
func (h *Handler) unpin(r *http.Request) (any, error) {
	ctx := r.Context()
	name := r.FormValue("name")
	if ref, err := ParseRef(name); err == nil {
		if p, err := h.Store.Ref(ctx, PinName(stored(ref))); err == nil {
			return []store.Ref{p}, h.Store.RemoveRef(ctx, p.Name)
		}
	}
	found, err := find(ctx, h.Store, name)
	if err != nil {
		return nil, err
	}
	pins := []store.Ref{}
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
	return pins, nil
}

// expiry returns when something ends that holds for ttl from now; zero means never.
func expiry(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}
