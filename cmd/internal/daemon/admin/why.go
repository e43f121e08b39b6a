package admin

import (
	"context"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
)

// why explains one image.
func (h *Handler) why(ctx context.Context, name modelname.Name) (*wire.Why, error) {
	im, err := h.findShown(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &wire.Why{Holders: []wire.Holder{}}
	refs := h.Store.Catalog.RefsOf(im.Table)
	w.Image, _ = h.state(ctx, im, refs)
	w.Share = new(wire.Share(h.Store.Share(w.ID())))
	if w.State == wire.StatePartial || w.State == wire.StateAbsent {
		if w.Early, w.Eager, err = h.Node.Early(ctx, im); err != nil {
			return nil, err
		}
	}
	for _, p := range w.Pins {
		w.Holders = append(w.Holders, wire.Holder{Kind: wire.HoldPin, Name: p.Name, Expires: p.Expires, End: wire.Command("ballast", "unpin", p.Name)})
	}
	work := h.Jobs.Status(ctx).Jobs
	explained := []wire.Image{w.Image}
	addWork(explained, work)
	w.Image = explained[0]
	users, unknown, err := h.users(ctx, im, work)
	if err != nil {
		return nil, err
	}
	if unknown != nil {
		w.Unknown = wire.Wrap(unknown)
	}
	w.Holders = append(w.Holders, users...)
	return w, nil
}

// users returns what uses an image: mounts, the running of the jobs, and what containerd has. unknown is why the last
// is not known: containerd may be down.
func (h *Handler) users(ctx context.Context, im store.Image, work []wire.Job) (users []wire.Holder, unknown, err error) {
	mounts, err := h.Mounts.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range mounts {
		if m.Table == im.Table {
			users = append(users, wire.Holder{Kind: wire.HoldMount, Name: m.Dir, End: wire.Command("ballast", "unmount", m.Dir)})
		}
	}
	for _, j := range work {
		if j.Ended.IsZero() && about(j, im) {
			users = append(users, wire.Holder{Kind: wire.HoldDownload, Name: string(j.Kind) + " " + j.Ref, Expires: j.Ends, End: endOf(j)})
		}
	}
	theirs, unknown := h.Holders.Holders(ctx, im.Table)
	return append(users, theirs...), unknown, nil
}

// about reports whether a job works on an image.
func about(j wire.Job, im store.Image) bool {
	return j.Table != "" && j.Table == im.Table || slices.Contains(im.Refs, j.Ref)
}

// endOf returns what ends a job.
func endOf(j wire.Job) string {
	switch {
	case j.Kind == wire.KindVerify, j.Kind == wire.KindScrub:
		return "the end of the verification"
	case j.Kind == wire.KindBackground:
		return "the end of what shows the model"
	case j.Waiting > 0:
		return "Ctrl-C of its client, then " + wire.Command("ballast", "rm", j.Ref)
	}
	return wire.Command("ballast", "rm", j.Ref)
}
