package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A removal removes images, and stops the downloads of the removed names and models that no client waits for. Of an
// image with several references, only the given one is removed.
type removal struct {
	*Handler
	name   modelname.Name
	dryRun bool // nothing changes, and no downloads are counted
	now    bool // with the files of the images, unless they are in use
	out    wire.Removed
}

// removing returns the handler of removals.
func (h *Handler) removing(dryRun bool) http.Handler {
	return answer(func(r *http.Request) (any, error) {
		name, err := modelname.Parse(r.FormValue("name"))
		if err != nil {
			return nil, err
		}
		rm := &removal{Handler: h, name: name, dryRun: dryRun, now: r.FormValue("now") == "true", out: wire.Removed{Manifests: []digest.Digest{}}}
		if err := rm.run(r.Context()); err != nil {
			return nil, err
		}
		return rm.out, nil
	})
}

func (r *removal) run(ctx context.Context) error {
	found, err := r.find(r.name)
	if errdefs.IsNotFound(err) && !r.dryRun {
		return r.stopUnnamed(ctx, err)
	}
	if err != nil {
		return err
	}
	var images, others []store.Image // others have more references
	for _, im := range found {
		if r.name.IsRef() && len(im.Refs) > 1 {
			others = append(others, im)
			continue
		}
		images = append(images, r.withEntries(im)...)
	}
	if r.now {
		if err := r.unused(ctx, images); err != nil {
			return err
		}
	}
	refs := r.Store.Catalog.Refs("")
	for _, im := range images {
		r.out.Manifests = append(r.out.Manifests, im.Manifest)
		r.out.Names = append(r.out.Names, nameOf(im))
		if slices.ContainsFunc(refs, func(ref store.Ref) bool { return !isIndex(im) && ref.Table == im.Table && isContainerds(ref) }) {
			r.out.InUse = append(r.out.InUse, im.Manifest)
		}
	}
	for _, im := range others {
		ref := r.name.Ref.Recorded()
		r.out.Untagged = append(r.out.Untagged, ref)
		if r.dryRun {
			continue
		}
		if err := r.untag(ctx, im, ref); err != nil {
			return err
		}
	}
	return r.remove(ctx, images)
}

// nameOf returns the references of an image, or its digest.
func nameOf(im store.Image) string { return cmp.Or(strings.Join(im.Refs, " "), im.Manifest.String()) }

// withEntries returns an image and, if it is an index, before it those of its entries that were not requested by a
// tag of their own.
func (r *removal) withEntries(im store.Image) []store.Image {
	entries, err := r.children(im)
	if err != nil {
		r.Log.Warn("index cannot be read, it is removed without its models", "digest", im.Manifest, "err", err)
	}
	entries = slices.DeleteFunc(entries, func(c store.Image) bool {
		return slices.ContainsFunc(c.Refs, func(ref string) bool { return !strings.Contains(ref, "@") })
	})
	return append(entries, im)
}

// unused returns errdefs.ErrFailedPrecondition, with what ends it, if images are used by anything but pins and
// downloads without a client, which their removal ends.
func (r *removal) unused(ctx context.Context, images []store.Image) error {
	if err := r.Care.ReleaseUnneeded(ctx); err != nil {
		r.Log.Warn("models may be held whose images or mounts are gone", "err", err)
	}
	// A removal stops downloads without a client, and does not wait for the verification of what it removes.
	work := slices.DeleteFunc(r.Jobs.Status(ctx).Jobs, func(j wire.Job) bool { return j.Waiting == 0 || j.Kind == wire.KindVerify || j.Kind == wire.KindScrub })
	var lines []string
	for _, im := range images {
		if isIndex(im) {
			continue
		}
		users, unknown, err := r.users(ctx, im, work)
		if err != nil {
			return err
		}
		if unknown != nil {
			return fmt.Errorf("%s stays: what of containerd uses it is unknown: %w", nameOf(im), unknown)
		}
		for _, u := range users {
			lines = append(lines, "\n\t"+heldBy(u))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%s is in use, and nothing was removed:%s: %w", r.name, strings.Join(lines, ""), errdefs.ErrFailedPrecondition)
}

// heldBy describes a holder, and what ends it.
func heldBy(holder wire.Holder) string {
	text := string(holder.Kind) + " " + holder.Name
	if holder.Namespace != "" {
		text += " in containerd's namespace " + holder.Namespace
	}
	return text + ", ends with: " + holder.End
}

// remove removes images and, with now, their files.
func (r *removal) remove(ctx context.Context, images []store.Image) error {
	if r.now {
		for _, im := range images {
			share := r.Store.Share(im.Manifest)
			r.out.Left += share.Own + share.Shared
			if r.dryRun {
				r.out.Bytes += share.Own
			}
		}
	}
	if r.dryRun {
		r.out.Left -= r.out.Bytes
		return nil
	}
	for _, im := range images {
		if err := r.forget(im); err != nil {
			return err
		}
		if err := r.stop(ctx, im.Table, im.Refs...); err != nil {
			return err
		}
		if len(r.Store.Catalog.ImagesByTable(im.Table)) > 0 {
			continue
		}
		if err := r.dropPins(im); err != nil { // of a download that has ended meanwhile
			return err
		}
	}
	if !r.now || len(images) == 0 {
		return nil
	}
	_, bytes, err := r.Store.RemoveImages(images)
	r.out.Bytes, r.out.Left = bytes, max(0, r.out.Left-bytes)
	return err
}

// stop stops the downloads of references and, if it has no image, of a table.
func (r *removal) stop(ctx context.Context, table digest.Digest, refs ...string) error {
	if table != "" && len(r.Store.Catalog.ImagesByTable(table)) > 0 {
		table = ""
	}
	n, err := r.Jobs.Stop(ctx, table, refs...)
	r.out.Stopped += n
	return err
}

// stopUnnamed stops the downloads of a model without an image. It returns notFound if there is none.
func (r *removal) stopUnnamed(ctx context.Context, notFound error) error {
	if r.name.IsRef() {
		if err := r.stop(ctx, "", r.name.Ref.Recorded()); err != nil {
			return err
		}
	} else {
		for _, w := range r.Store.Work() {
			if !r.name.Matches(w.Table) {
				continue
			}
			if err := r.stop(ctx, w.Table); err != nil {
				return err
			}
		}
	}
	if r.out.Stopped == 0 {
		return notFound
	}
	return nil
}

// untag removes a reference of im, its pin and its downloads.
func (r *removal) untag(ctx context.Context, im store.Image, ref string) error {
	if err := r.Store.RemoveRef(modelname.Pin(ref)); err != nil {
		return err
	}
	if err := r.Store.Catalog.RemoveRefs(im.Manifest, ref); err != nil {
		return err
	}
	r.Log.Info("reference removed", "ref", ref, "digest", im.Manifest)
	if err := r.stop(ctx, "", ref); err != nil {
		return err
	}
	return r.Store.RemoveRef(modelname.Pin(ref)) // of a download that has ended meanwhile
}

// forget removes im and its pins.
func (h *Handler) forget(im store.Image) error {
	if err := h.dropPins(im); err != nil {
		return err
	}
	if err := h.Store.Catalog.RemoveImage(im.Manifest); err != nil {
		return err
	}
	h.Log.Info("model removed", "ref", strings.Join(im.Refs, " "), "digest", im.Manifest)
	return nil
}

// dropPins removes the pins of im.
func (h *Handler) dropPins(im store.Image) error {
	pins, err := h.pinsOf(im)
	if err != nil {
		return err
	}
	for _, ref := range im.Refs { // the pin of an index is on a model that can stay
		if err := h.Store.RemoveRef(modelname.Pin(ref)); err != nil {
			return err
		}
	}
	for _, p := range pins {
		if err := h.Store.RemoveRef(p.Name); err != nil {
			return err
		}
	}
	return nil
}
