package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fleetPin is the prefix of the names of the cluster's pins.
const fleetPin = modelname.PinPrefix + "fleet/"

// maxFleetPins limits the pins of the cluster.
const maxFleetPins = 1 << 10

// FleetRoutes returns the handler for the agent of a cluster. It downloads models, and changes only the pins that it
// has made itself.
func (h *Handler) FleetRoutes() http.Handler {
	mux := h.statusMux()
	mux.Handle("POST /v1/fleet/pull", stream(h.fleetPull))
	mux.Handle("POST /v1/fleet/version", request(h.fleetVersion))
	mux.Handle("PUT /v1/fleet/pins", request(h.setFleetPins))
	mux.Handle("GET /v1/fleet/pulls", query(func(ctx context.Context) ([]wire.Pull, error) { return h.pulls(ctx), nil }))
	mux.Handle("GET /v1/fleet/node", query(func(context.Context) (v wire.FleetNode, _ error) {
		v.Direct, v.Mirrors = h.Node.Received()
		v.Mirrors = withoutErrors(v.Mirrors)
		u, err := h.Store.Usage()
		v.Usage = wire.Usage(u)
		return v, err
	}))
	return working(mux, h.Node)
}

// fleetPull downloads a model, as a prefetch does, which has no time limit, and has containerd pull it, which finds
// all files. Without a pull secret, it uses what the kubelet has for each pod of the node.
func (h *Handler) fleetPull(ctx context.Context, r wire.FleetPullRequest, out *lines) error {
	ref, err := resolve.ParseRef(r.Ref)
	if err != nil {
		return err
	}
	if err := checkRate(r.Rate); err != nil {
		return err
	}
	req := jobs.Request{PrefetchRequest: wire.PrefetchRequest{Ref: r.Ref, NoPin: true, Rate: r.Rate}, ForPods: true, Version: r.Version}
	if r.Rate > 0 {
		req.List = "fleet/" + r.Set
	}
	if req.Credentials, err = h.forPods(ref, r.Username, r.Password); err != nil {
		return err
	}
	var auth *cri.AuthConfig
	if req.Credentials != nil {
		auth = &cri.AuthConfig{Username: req.Credentials.Username, Password: req.Credentials.Secret}
	}
	if r.Version != "" {
		if _, err := resolve.ParseRef(ref.Name() + "@" + r.Version.String()); err != nil {
			return err
		}
	}
	_, refused := h.Jobs.Prefetch(ctx, ref, req, out.events)
	if refused != nil && !errors.Is(refused, jobs.ErrNodeOnly) {
		return refused
	}
	if r.Version != "" {
		defer h.Facade.Hold(ref, r.Version)()
	}
	image, err := h.Containerd.Pull(ctx, r.Ref, r.Handler, auth) // after ErrNodeOnly too: the configuration of containerd may have credentials
	switch {
	case refused != nil && err != nil:
		return refused
	case errdefs.IsUnavailable(err), ctx.Err() != nil:
		return err
	case err != nil: // ballastd has downloaded it
		return fmt.Errorf("containerd cannot pull what ballastd can; if %s is not closed on this node, containerd asks it itself: close it (registries of the chart, or \"ballast setup --registry %[1]s\", with those that are closed already): %w", ref.Host, err)
	}
	im, err := h.findOne(modelname.Name{Ref: ref}) // another one if the tag has moved meanwhile
	if err == nil {
		if _, lacking := h.Store.Views.Files(im.Table); lacking != nil {
			im, err = h.Jobs.Rest(ctx, im, ref, jobs.Request{PrefetchRequest: wire.PrefetchRequest{NoPin: true}}, out.events)
		}
	}
	if err != nil {
		return err
	}
	record := translate.Image(im)
	if err := h.Images.MarkImage(ctx, image, record.ID()); err != nil {
		return err
	}
	return out.send(wire.Event{Status: wire.StatusSuccess, Ref: ref.Recorded(), Image: &record})
}

// fleetVersion asks the registry what a tag points to, with the credentials of fleetPull.
func (h *Handler) fleetVersion(ctx context.Context, r wire.FleetVersionRequest) (v wire.FleetVersion, err error) {
	ref, err := resolve.ParseRef(r.Ref)
	if err != nil {
		return v, err
	}
	creds, err := h.forPods(ref, r.Username, r.Password)
	if err != nil {
		return v, err
	}
	is, err := h.Facade.Version(ctx, ref, creds)
	return wire.FleetVersion(is), err
}

// forPods returns the credentials of a pull secret, otherwise what the kubelet has for each pod of the node; nil: none.
func (h *Handler) forPods(ref remote.Ref, username, password string) (*remote.Credentials, error) {
	creds := remote.Credentials{Username: username, Secret: password}
	if creds == (remote.Credentials{}) && h.Providers != nil && ref.URL == "" {
		var err error
		if creds, err = h.Providers(ref.Host, ref.Repository); err != nil {
			return nil, err
		}
	}
	if creds == (remote.Credentials{}) {
		return nil, nil
	}
	return &creds, nil
}

// pulls returns the downloads that pulls of containerd wait for.
func (h *Handler) pulls(ctx context.Context) []wire.Pull {
	all := []wire.Pull{}
	for _, j := range h.Jobs.Status(ctx).Jobs {
		if j.Kind != wire.KindContainerd || !j.Ended.IsZero() || j.Total == 0 {
			continue
		}
		p := wire.Pull{Total: j.Total, Completed: j.Completed, Rate: j.Rate}
		for _, im := range h.Store.Catalog.ImagesByTable(j.Table) {
			p.Refs = append(p.Refs, im.Refs...)
		}
		all = append(all, p)
	}
	return all
}

// checkRate checks the rate of a request.
func checkRate(rate int64) error {
	if rate < 0 {
		return fmt.Errorf("rate %d is negative: %w", rate, errdefs.ErrInvalidArgument)
	}
	return nil
}

// setFleetPins replaces the pins of the cluster, in the store and of images in containerd. Those of others stay. It
// returns those whose model and image are there.
func (h *Handler) setFleetPins(ctx context.Context, req wire.FleetPins) (wire.FleetPins, error) {
	if len(req.Pins) > maxFleetPins {
		return wire.FleetPins{}, fmt.Errorf("%d pins are more than %d: %w", len(req.Pins), maxFleetPins, errdefs.ErrInvalidArgument)
	}
	set, wanted, models := wire.FleetPins{Pins: []wire.FleetPin{}}, map[string]bool{}, map[digest.Digest]bool{}
	for _, p := range req.Pins {
		ref, err := resolve.ParseRef(p.Ref)
		if err != nil {
			return set, err
		}
		id, err := modelname.Parse(p.Digest.String())
		if err != nil {
			return set, err
		}
		im, err := h.findOne(id)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return set, err
		}
		name := fleetPin + ref.Recorded() + "@" + p.Digest.String()
		if old, err := h.Store.Catalog.Ref(name); err != nil || old.Table != im.Table {
			if err := jobs.AddPin(h.Store, name, im.Table, time.Time{}, ref); err != nil {
				return set, err
			}
		}
		wanted[name], models[p.Digest] = true, true
		set.Pins = append(set.Pins, p)
	}
	for _, p := range h.Store.Catalog.Refs(fleetPin) {
		if !wanted[p.Name] {
			if err := h.Store.RemoveRef(p.Name); err != nil {
				return set, err
			}
		}
	}
	has, err := h.Images.PinImages(ctx, models)
	if err != nil {
		return set, err
	}
	set.Pins = slices.DeleteFunc(set.Pins, func(p wire.FleetPin) bool { return !has[p.Digest] })
	return set, nil
}
