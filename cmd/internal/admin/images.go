package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxConfig is the largest image config that is shown, in bytes.
const maxConfig = 8 << 20 // 8 MiB

// snapshotPrefix is what the names of references that are snapshots start with.
const snapshotPrefix = "snapshot/"

// isContainerds says whether a reference is of containerd: a snapshot, or an image whose model a pod mounts.
func isContainerds(r store.Ref) bool {
	return strings.HasPrefix(r.Name, snapshotPrefix) || strings.HasPrefix(r.Name, originPrefix)
}

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
		v, _ := h.state(ctx, im, refs)
		out = append(out, v)
	}
	rest, err := h.unnamed(ctx, all, refs)
	out = append(out, rest...)
	h.rates(ctx, out)
	return out, err
}

// rates says of images that are being fetched how fast that goes: as the fastest of the jobs does that wait for it.
func (h *Handler) rates(ctx context.Context, images []Image) {
	rates := map[digest.Digest]int64{}
	for _, j := range h.Status(ctx).Jobs {
		if j.Ended.IsZero() && j.Table != "" {
			rates[j.Table] = max(rates[j.Table], j.Rate)
		}
	}
	for i := range images {
		if im := &images[i]; im.State == StatePulling || im.State == StateLazy {
			im.Rate = rates[im.Table]
		}
	}
}

// state returns im with its state, and its files if it is complete. An image that can not be
// shown does not hide the others: it is StateInvalid.
func (h *Handler) state(ctx context.Context, im store.Image, refs []store.Ref) (Image, []filetable.File) {
	if im.Refs == nil {
		im.Refs = []string{} // as JSON
	}
	v := Image{Image: im, State: StateComplete}
	if isIndex(im) {
		v.State = StateIndex
		if _, err := children(ctx, h.Store, im); err != nil {
			v.invalid(err)
		}
		return v, nil
	}
	for _, ref := range refs {
		switch {
		case ref.Table != im.Table:
		case strings.HasPrefix(ref.Name, pinPrefix):
			v.Pins = append(v.Pins, ref)
		case isContainerds(ref):
			v.Snapshots++
		}
	}
	files, err := h.Store.Files(ctx, im.Table)
	switch {
	case err == nil:
		return v, files
	case !errdefs.IsUnavailable(err):
		v.invalid(err)
		return v, nil
	}
	if err := h.progress(ctx, &v); err != nil {
		v.invalid(err)
	}
	return v, nil
}

// progress says how far an image is that is not complete.
func (h *Handler) progress(ctx context.Context, v *Image) error {
	ps, pulling := h.Store.Hydrating(v.Table)
	early := h.Store.Early(v.Table)
	switch {
	case len(early) > 0:
		p, err := h.Store.Presence(ctx, v.Table)
		if err != nil {
			return err
		}
		v.State, v.Total, v.Completed = StateLazy, p.Total, p.Done
		for _, e := range early {
			v.Unverified = v.Unverified || e.Unverified
		}
	case pulling:
		v.State = StatePulling
		for _, p := range ps {
			v.Total += p.Total
			v.Completed += p.Done
		}
	default:
		begun, err := h.Store.Started(ctx, v.Table)
		if err != nil {
			return err
		}
		v.State = StateAbsent
		if begun {
			v.State = StatePartial
		}
		return nil
	}
	v.Paused = h.Store.Paused() && !h.Store.Awaited(v.Table)
	return nil
}

// invalid says why v can not be shown.
func (v *Image) invalid(err error) {
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("a document of it is gone, its next pull or prefetch by tag makes it again: %w", err)
	}
	v.State, v.Error = StateInvalid, Wrap(err)
}

// image answers with all that is known of one image.
func (h *Handler) image(r *http.Request) (any, error) {
	ctx := r.Context()
	refs, err := h.Store.Refs(ctx, "")
	if err != nil {
		return nil, err
	}
	d := Detail{Files: []filetable.File{}, Blobs: []filetable.Blob{}}
	im, err := h.findShown(ctx, r.FormValue("name"))
	if err != nil {
		// An index that can not be read is shown as far as it is known.
		found, findErr := find(ctx, h.Store, r.FormValue("name"))
		if findErr != nil || len(found) != 1 || !isIndex(found[0]) {
			return nil, err
		}
		if d.Image, _ = h.state(ctx, found[0], refs); d.State != StateInvalid {
			return nil, err
		}
		return d, nil
	}
	var files []filetable.File
	d.Image, files = h.state(ctx, im, refs)
	if err := h.signers(ctx, &d, im); err != nil {
		return nil, err
	}
	t, err := h.Store.Table(ctx, im.Table)
	if err != nil {
		d.invalid(err)
	} else {
		d.Blobs = append(d.Blobs, t.Blobs...)
		if files == nil {
			files = t.Seen()
		}
		use, err := h.Store.ChunkUse(ctx, im.Table)
		if err != nil {
			return nil, err
		}
		if use.Chunks > 0 {
			d.Chunks = &use
		}
	}
	d.Files = append(d.Files, files...) // a copy: the store keeps the table
	for i := range d.Files {
		d.Files[i].Source = nil // large, and of use to nobody here
	}
	if t == nil {
		t = &filetable.Table{Origin: im.Origin}
	}
	h.explain(ctx, &d, t)
	return d, nil
}

// Removed says what a removal took away.
type Removed struct {
	Manifests []digest.Digest `json:"manifests"`          // of images that are forgotten
	Untagged  []string        `json:"untagged,omitempty"` // references of images that have others

	// InUse are those of Manifests whose files stay: snapshots or images of containerd need them.
	InUse []digest.Digest `json:"inUse,omitempty"`
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
	if r, err := resolve.ParseRef(name); err == nil {
		ref = stored(r)
	}
	refs, err := h.Store.Refs(ctx, "")
	if err != nil {
		return nil, err
	}
	out := Removed{Manifests: []digest.Digest{}}
	for _, im := range found {
		if i := slices.Index(im.Refs, ref); i >= 0 && len(im.Refs) > 1 {
			if err := h.untag(ctx, im, i); err != nil {
				return nil, err
			}
			out.Untagged = append(out.Untagged, ref)
			continue
		}
		entries, err := children(ctx, h.Store, im)
		if err != nil {
			h.Log.Warn("index can not be read, it is removed without its models", "digest", im.Manifest, "err", err)
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
			if slices.ContainsFunc(refs, func(r store.Ref) bool { return !isIndex(im) && r.Table == im.Table && isContainerds(r) }) {
				out.InUse = append(out.InUse, im.Manifest)
			}
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
	if err := h.Store.RemoveRefs(ctx, im.Manifest, ref); err != nil {
		return err
	}
	h.Log.Info("reference removed", "ref", ref, "digest", im.Manifest)
	return nil
}

// forget removes im and its pins.
func (h *Handler) forget(ctx context.Context, im store.Image) error {
	pins, err := h.pinsOf(ctx, im)
	if err != nil {
		return err
	}
	for _, ref := range im.Refs { // that of an index is on a model that may stay
		if err := h.Store.RemoveRef(ctx, PinName(ref)); err != nil {
			return err
		}
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
