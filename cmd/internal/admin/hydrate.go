package admin

import (
	"fmt"
	"net/http"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// hydrate downloads the rest of a model.
func (h *Handler) hydrate(w http.ResponseWriter, r *http.Request) {
	var req api.HydrateRequest
	out := newStream(w)
	err := decodeBody(r, &req)
	var name api.Name
	if err == nil {
		name, err = api.ParseName(req.Name)
	}
	var im store.Image
	if err == nil {
		im, err = h.findShown(r.Context(), name)
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("%w; \"ballast prefetch\" fetches models that this node does not know", err)
		}
	}
	if err != nil {
		_ = out.send(api.Event{Status: api.StatusError, Error: api.Wrap(err)})
		return
	}
	last := api.Event{Status: api.StatusSuccess, Ref: req.Name, Image: &im}
	if name.IsRef() {
		last.Ref = name.Ref.Recorded()
	}
	if _, err := h.Store.Files(r.Context(), im.Table); err != nil { // not complete
		err := h.Hydrate(r.Context(), im, name.Ref, req.Wait, out.events)
		switch {
		case err != nil:
			last = api.Event{Status: api.StatusError, Ref: last.Ref, Error: api.Wrap(err)}
		case !req.Wait && h.Store.Paused():
			last.Status = api.StatusPaused
		case !req.Wait:
			last.Status = api.StatusStarted
		}
	}
	_ = out.send(last)
}

// pause pauses or resumes background downloads.
func (h *Handler) pause(r *http.Request) (any, error) {
	var req api.PauseRequest
	if err := decodeBody(r, &req); err != nil {
		return nil, err
	}
	if req.Paused {
		h.Store.Pause()
		h.Log.Warn("downloads that nobody waits for are paused; readers are served")
	} else {
		h.Store.Resume()
		h.Log.Info("downloads that nobody waits for go on")
	}
	return api.PauseRequest{Paused: h.Store.Paused()}, nil
}
