package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/jobs"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

// fleetPin is the prefix of the names of the cluster's pins.
const fleetPin = api.PinPrefix + "fleet/"

// maxFleetPins limits the pins of the cluster.
const maxFleetPins = 1 << 10

// lookEvery is the interval between two looks at the download of a pull.
const lookEvery = time.Second

// FleetRoutes returns the handler for the agent of a cluster. It downloads models, and changes only the pins that it
// has made itself.
func (h *Handler) FleetRoutes() http.Handler {
	mux := h.statusMux()
	mux.Handle("POST /v1/fleet/pull", stream(h.fleetPull))
	mux.Handle("PUT /v1/fleet/pins", request(h.setFleetPins))
	mux.Handle("GET /v1/fleet/node", query(func(context.Context) (v api.FleetNode, err error) {
		v.Direct, v.Mirrors = h.Received()
		v.Usage, err = h.Store.Usage()
		return v, err
	}))
	return mux
}

// fleetPull downloads a model and has containerd pull it. Without credentials it downloads first, as a prefetch does, which
// has no time limit: the pull that follows finds all files.
func (h *Handler) fleetPull(ctx context.Context, r api.FleetPullRequest, out *lines) error {
	ref, err := resolve.ParseRef(r.Ref)
	if err != nil {
		return err
	}
	name := api.Name{Ref: ref}
	if r.Username == "" && r.Password == "" {
		_, err = h.Prefetch(ctx, ref, api.PrefetchRequest{Ref: r.Ref, NoPin: true}, out.events)
	}
	if err == nil {
		err = h.watched(ref.Recorded(), out, func() error { return h.CRIPull(ctx, r) })
	}
	if err != nil {
		return err
	}
	im, err := h.findOne(ctx, name)
	if err == nil {
		if _, lacking := h.Store.Files(ctx, im.Table); lacking != nil { // it is read before it is complete
			err = h.Hydrate(ctx, im, ref, true, out.events)
		}
	}
	if err != nil {
		return err
	}
	return out.send(api.Event{Status: api.StatusSuccess, Ref: ref.Recorded(), Image: &im})
}

// watched calls pull and sends the progress of the download that it waits for.
func (h *Handler) watched(ref string, out *lines, pull func() error) error {
	done := make(chan error, 1)
	go func() { done <- pull() }()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		for _, j := range h.Status(context.Background()).Jobs {
			if j.Kind == api.KindContainerd && j.Ref == ref && j.Ended.IsZero() && j.Total > 0 {
				// An error is that of a client that has gone, which ends the pull.
				_ = out.send(api.Event{Status: api.StatusDownloading, Ref: ref, Digest: j.Table, Total: j.Total, Completed: j.Completed, Rate: j.Rate})
			}
		}
	}
}

// setFleetPins replaces the pins of the cluster. Those of others stay.
func (h *Handler) setFleetPins(ctx context.Context, req api.FleetPins) (api.FleetPins, error) {
	if len(req.Pins) > maxFleetPins {
		return api.FleetPins{}, fmt.Errorf("%d pins are more than %d: %w", len(req.Pins), maxFleetPins, errdefs.ErrInvalidArgument)
	}
	set, wanted := api.FleetPins{Pins: []api.FleetPin{}}, map[string]bool{}
	for _, p := range req.Pins {
		ref, err := resolve.ParseRef(p.Ref)
		if err != nil {
			return set, err
		}
		id, err := api.ParseName(p.Digest.String())
		if err != nil {
			return set, err
		}
		im, err := h.findOne(ctx, id)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return set, err
		}
		name := fleetPin + ref.Recorded() + "@" + p.Digest.String()
		if err := jobs.AddPin(ctx, h.Store, name, im.Table, time.Time{}, ref); err != nil {
			return set, err
		}
		wanted[name] = true
		set.Pins = append(set.Pins, p)
	}
	for _, p := range h.Store.Refs(fleetPin) {
		if !wanted[p.Name] {
			if err := h.Store.RemoveRef(p.Name); err != nil {
				return set, err
			}
		}
	}
	return set, nil
}
