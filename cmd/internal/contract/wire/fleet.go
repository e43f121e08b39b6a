package wire

import (
	"context"
	"net/http"

	"github.com/opencontainers/go-digest"
)

// FleetPullRequest requests a model for the pods of this node: its download, and a pull by containerd, after which
// the kubelet lists it. It does not pin.
type FleetPullRequest struct {
	Ref string `json:"ref"` // with registry; see ParseRef

	// Version is the digest that the tag of Ref points to; empty: the registry is asked. See FleetVersion.
	Version digest.Digest `json:"version,omitempty"`

	// Handler is the runtime handler of the pods; empty means the default.
	Handler string `json:"handler,omitempty"`

	// Rate limits the downloads of all models of a Set, in bytes per second; 0: no limit. See PrefetchRequest.
	Rate int64  `json:"rate,omitempty"`
	Set  string `json:"set,omitempty"`

	// Username and Password are those of a pull secret. Without them, the model must be public.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// FleetVersionRequest asks what a tag points to.
type FleetVersionRequest struct {
	Ref string `json:"ref"` // with registry and tag

	// Username and Password are those of a pull secret; without them, those of the node count.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// FleetVersion is what a tag points to.
type FleetVersion struct {
	// Digest is that of the manifest or index in the registry. It is empty if no digest says what the tag points to,
	// such as for an archive at a URL: then each node asks, by a FleetPullRequest without Version.
	Digest digest.Digest `json:"digest"`

	// Imported is set if the registry does not answer, and the node has imported the model.
	Imported bool `json:"imported,omitempty"`
}

// FleetPin is a pin that the cluster wishes.
type FleetPin struct {
	Ref    string        `json:"ref"`    // the reference by which the model was requested
	Digest digest.Digest `json:"digest"` // see Image.ID
}

// FleetPins are all pins of the cluster on this node. Pins of others are not among them.
type FleetPins struct {
	Pins []FleetPin `json:"pins"`
}

// FleetNode is what models take on this node, and where their bytes came from since the daemon was started.
type FleetNode struct {
	Usage   Usage    `json:"usage"`
	Direct  int64    `json:"direct"` // bytes from registries themselves
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// A Pull is a download that a pull of containerd waits for.
type Pull struct {
	Refs      []string `json:"refs"` // all references of the model
	Total     int64    `json:"total"`
	Completed int64    `json:"completed"`
	Rate      int64    `json:"rate"` // bytes per second
}

// FleetPulls returns the downloads that pulls of containerd wait for.
func (c *Client) FleetPulls(ctx context.Context) (v []Pull, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fleet/pulls", nil, &v)
}

// FleetNode returns what the cluster shows of this node.
func (c *Client) FleetNode(ctx context.Context) (v FleetNode, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fleet/node", nil, &v)
}

// FleetVersion asks the registry what a tag points to.
func (c *Client) FleetVersion(ctx context.Context, r FleetVersionRequest) (v FleetVersion, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/fleet/version", r, &v)
}

// FleetPull downloads a model, has containerd pull it, and calls event for each line but the last. If ctx ends, the
// download continues; see Prefetch.
func (c *Client) FleetPull(ctx context.Context, r FleetPullRequest, event func(Event)) (Record, error) {
	last, err := readStream(ctx, c, "/v1/fleet/pull", r, event, Event.end)
	if err != nil {
		return Record{}, err
	}
	return *last.Image, nil
}

// SetFleetPins replaces the pins of the cluster, and returns them: models that are not on the node have none.
func (c *Client) SetFleetPins(ctx context.Context, pins FleetPins) (v FleetPins, err error) {
	return v, c.call(ctx, http.MethodPut, "/v1/fleet/pins", pins, &v)
}

// DropFleetPins removes the pins of the cluster.
func (c *Client) DropFleetPins(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/v1/fleet/pins", nil, new(FleetPins))
}
