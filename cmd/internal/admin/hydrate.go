package admin

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// hydrate downloads the rest of a model.
func (h *Handler) hydrate(ctx context.Context, req api.HydrateRequest, out *lines) error {
	name, err := api.ParseName(req.Name)
	if err != nil {
		return err
	}
	im, err := h.findShown(ctx, name)
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w; \"ballast prefetch\" fetches models that this node does not know", err)
	}
	if err != nil {
		return err
	}
	last := api.Event{Status: api.StatusSuccess, Ref: req.Name, Image: &im}
	if name.IsRef() {
		last.Ref = name.Ref.Recorded()
	}
	if _, err := h.Store.Files(ctx, im.Table); err != nil { // not complete
		err := h.Hydrate(ctx, im, name.Ref, req.Wait, out.events)
		switch {
		case err != nil:
			last = api.Event{Status: api.StatusError, Ref: last.Ref, Error: api.Wrap(err)}
		case !req.Wait && h.Store.Paused():
			last.Status = api.StatusPaused
		case !req.Wait:
			last.Status = api.StatusStarted
		}
	}
	return out.send(last)
}

// pause pauses or resumes background downloads.
func (h *Handler) pause(_ context.Context, req api.PauseRequest) (api.PauseRequest, error) {
	if req.Paused {
		h.Store.Pause()
		h.Log.Warn("downloads that nobody waits for are paused; readers are served")
	} else {
		h.Store.Resume()
		h.Log.Info("downloads that nobody waits for go on")
	}
	return api.PauseRequest{Paused: h.Store.Paused()}, nil
}
