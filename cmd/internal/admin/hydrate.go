package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// HydrateRequest asks for the rest of a model that is known.
type HydrateRequest struct {
	Name string `json:"name"` // a reference or a digest

	// Wait says that somebody waits for the end: a pause does not hold it up, and the stream
	// ends when the model is complete. Otherwise it ends at once, and the work gives way to
	// all else.
	Wait bool `json:"wait,omitempty"`
}

// PauseRequest stops what nobody waits for, or lets it go on. It is the answer as well.
type PauseRequest struct {
	Paused bool `json:"paused"`
}

// The statuses of the last Event of a hydration that nobody waits for.
const (
	StatusStarted = "started"
	StatusPaused  = "paused" // it begins when the pause ends
)

// hydrate brings the rest of a model.
func (h *Handler) hydrate(w http.ResponseWriter, r *http.Request) {
	var req HydrateRequest
	out := newStream(w)
	err := decodeBody(r, &req)
	var im store.Image
	if err == nil {
		im, err = h.findShown(r.Context(), req.Name)
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("%w; \"ballast prefetch\" gets what this node does not know", err)
		}
	}
	if err != nil {
		_ = out.send(Event{Status: StatusError, Error: Wrap(err)})
		return
	}
	last := Event{Status: StatusSuccess, Ref: req.Name, Image: &im}
	if ref, err := resolve.ParseRef(req.Name); err == nil {
		last.Ref = stored(ref)
	}
	if _, err := h.Store.Files(r.Context(), im.Table); err != nil { // not complete
		err := h.Hydrate(r.Context(), im, req, out.events)
		switch {
		case err != nil:
			last = Event{Status: StatusError, Ref: last.Ref, Error: Wrap(err)}
		case !req.Wait && h.Store.Paused():
			last.Status = StatusPaused
		case !req.Wait:
			last.Status = StatusStarted
		}
	}
	_ = out.send(last)
}

// pause stops what nobody waits for, or lets it go on.
func (h *Handler) pause(r *http.Request) (any, error) {
	var req PauseRequest
	if err := decodeBody(r, &req); err != nil {
		return nil, err
	}
	if req.Paused {
		h.Store.Pause()
		h.Log.Warn("what nobody waits for is paused; readers go on")
	} else {
		h.Store.Resume()
		h.Log.Info("what nobody waits for goes on")
	}
	return PauseRequest{h.Store.Paused()}, nil
}

// Hydrate brings the rest of a model and calls event for each line but the last, which it returns:
// of StatusSuccess if the model is complete, or StatusStarted or StatusPaused. If ctx ends, the daemon goes on; see
// Prefetch.
func (c *Client) Hydrate(ctx context.Context, r HydrateRequest, event func(Event)) (last Event, err error) {
	err = readStream(ctx, c, "/v1/hydrate", r, func(e Event) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error
		case e.Image != nil:
			last = e
			return true, nil
		}
		event(e)
		return false, nil
	})
	return last, err
}

// Pause stops what nobody waits for, or lets it go on; it returns which of the two is so.
func (c *Client) Pause(ctx context.Context, paused bool) (bool, error) {
	var v PauseRequest
	err := c.call(ctx, http.MethodPut, "/v1/pause", PauseRequest{paused}, &v)
	return v.Paused, err
}
