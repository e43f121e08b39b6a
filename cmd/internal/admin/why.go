package admin

import (
	"context"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
)

// why explains one image.
func (h *Handler) why(ctx context.Context, name api.Name) (*api.Why, error) {
	im, err := h.findShown(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &api.Why{Holders: []api.Holder{}}
	refs := h.Store.RefsOf(im.Table)
	w.Image, _ = h.state(ctx, im, refs)
	share := h.Store.Share(w.ID())
	w.Share = &share
	if w.State != api.StateComplete {
		if w.Eager, err = h.Eager(ctx, im); err != nil {
			return nil, err
		}
	}
	for _, p := range w.Pins {
		w.Holders = append(w.Holders, api.Holder{Kind: api.HoldPin, Name: p.Name, Expires: p.Expires, End: api.Command("ballast", "unpin", p.Name)})
	}
	mounts, err := h.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if m.Table == im.Table {
			w.Holders = append(w.Holders, api.Holder{Kind: api.HoldMount, Name: m.Dir, End: api.Command("ballast", "unmount", m.Dir)})
		}
	}
	work := h.Status(ctx).Jobs
	explained := []api.Image{w.Image}
	addWork(explained, work)
	w.Image = explained[0]
	for _, j := range work {
		if !j.Ended.IsZero() || !about(j, im) {
			continue
		}
		w.Holders = append(w.Holders, api.Holder{Kind: api.HoldDownload, Name: string(j.Kind) + " " + j.Ref, Expires: j.Ends, End: endOf(j)})
	}
	theirs, err := h.Holders(ctx, im.Table)
	if err != nil { // containerd may be down
		w.Unknown = api.Wrap(err)
	}
	w.Holders = append(w.Holders, theirs...)
	return w, nil
}

// about reports whether a job works on an image.
func about(j api.Job, im store.Image) bool {
	return j.Table != "" && j.Table == im.Table || slices.Contains(im.Refs, j.Ref)
}

// endOf returns what ends a job.
func endOf(j api.Job) string {
	switch {
	case j.Kind == api.KindVerify, j.Kind == api.KindScrub:
		return "the end of the verification"
	case j.Kind == api.KindBackground:
		return "the end of what shows the model"
	case j.Waiting > 0:
		return "Ctrl-C of its client, then " + api.Command("ballast", "rm", j.Ref)
	}
	return api.Command("ballast", "rm", j.Ref)
}
