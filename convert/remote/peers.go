package remote

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A PeerKind is a program on the nodes of a cluster that passes blobs to others.
type PeerKind string

// The kinds.
const (
	// Dragonfly is the proxy of dfdaemon. It shares pieces of blobs above 4 MiB, answers requests for 4 MiB and
	// less from the registry, and gives what it has to everybody.
	// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client/src/proxy/header.rs
	Dragonfly PeerKind = "dragonfly"

	// Spegel is the registry of Spegel. It gives everybody the complete blobs of containerd on other nodes, and
	// answers 404 also if none of these nodes was fast enough.
	// https://github.com/spegel-org/spegel/blob/v0.7.4/pkg/registry/registry.go
	Spegel PeerKind = "spegel"
)

// Peers are a mirror for the blobs of many registries.
type Peers struct {
	URL     string // http or https, with a host
	Kind    PeerKind
	For     func(host string) bool // reports whether it is asked for a host of references
	Trusted bool                   // it gets the credentials of callers; only for Dragonfly
}

// pieceLength is the size of the pieces that Dragonfly shares. A blob is another task for each size, so it is the
// same on all nodes.
const pieceLength = 16 << 20 // 16 MiB

// dragonflyHeader are the headers of a request to Dragonfly: to share the blob, between repositories too.
var dragonflyHeader = http.Header{
	"X-Dragonfly-Use-P2p":                          {"true"},
	"X-Dragonfly-Enable-Task-Id-Based-Blob-Digest": {"true"},
	"X-Dragonfly-Piece-Length":                     {"16mib"},
}

// dragonflyError is the header of an error that says where it comes from: "backend" is the registry.
const dragonflyError = "X-Dragonfly-Error-Type"

// How long mirrors and peers may take to begin an answer (transfer.Endpoint.Patience), Dragonfly only for urgent reads:
// see pieceGather. Peers are asked after the registry has confirmed the blob. Tests that count requests change them.
var (
	mirrorPatience time.Duration
	peersPatience  = confirmTime + 5*time.Second
)

// How long Dragonfly may take to get a part of a piece (transfer.Endpoint.Gather), from the registry too, and while it
// sends others (LongGather). The dfdaemon that is written in Go answers when it has the first part. If nodes gave up
// earlier on a slow network, all of them would ask the registry, which makes it slower: 16 nodes that begin with 64
// pieces get the first parts from a registry of 100 Mbit/s after 21 seconds, and then send them to each other.
const (
	pieceGather     = 30 * time.Second
	pieceLongGather = 2 * time.Minute
)

// Check returns errdefs.ErrInvalidArgument if p is not valid.
func (p Peers) Check() error {
	u, err := url.Parse(p.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "":
		return fmt.Errorf("the url of a mirror is not http or https with a host, and without a user name: %w", errdefs.ErrInvalidArgument)
	case p.Kind != Dragonfly && p.Kind != Spegel:
		return fmt.Errorf("mirror %s: kind %q is not dragonfly or spegel: %w", p.URL, p.Kind, errdefs.ErrInvalidArgument)
	case p.Trusted && p.Kind != Dragonfly:
		return fmt.Errorf("mirror %s: trust: %s takes no credentials: %w", p.URL, p.Kind, errdefs.ErrInvalidArgument)
	}
	return nil
}

// stall returns Options.Stall for p, or for any other host if p is nil, where it is usual.
func (p *Peers) stall(usual time.Duration) time.Duration {
	if p != nil && p.Kind == Dragonfly {
		return max(usual, pieceLongGather)
	}
	return usual
}

// host returns p as a host of hosts.toml.
func (p Peers) host(t *http.Transport) docker.RegistryHost {
	u, _ := url.Parse(p.URL) // checked
	h := docker.RegistryHost{Client: &http.Client{Transport: t}, Scheme: u.Scheme, Host: u.Host, Path: u.JoinPath("v2").Path, Capabilities: docker.HostCapabilityPull}
	if p.Kind == Dragonfly {
		h.Header = dragonflyHeader
	}
	return h
}

// mayAsk returns transfer.ErrNotAsked unless e may be asked for a blob: peers give everybody what they have, so the
// registry has to confirm that the caller may have it, unless it is never asked (Options.MirrorOnly). What the registry
// does not give to everybody is asked for only if peers are trusted with credentials.
func (r *Repository) mayAsk(ctx context.Context, e *endpoint, d digest.Digest) error {
	if e.peers == nil || r.origin() == nil {
		return nil
	}
	private, err := r.confirm(ctx, d)
	if err == nil {
		err = r.disproved(d)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%s: %s does not confirm the blob (%v): %w", e.Host, r.ref.Host, err, transfer.ErrNotAsked)
	case private && !e.peers.Trusted:
		return fmt.Errorf("%s: %s gives the blob only with credentials: %w", e.Host, r.ref.Host, transfer.ErrNotAsked)
	}
	return nil
}

// ownError returns an error if a response of peers is a failure of their own, and not an answer of the registry.
func (p *Peers) ownError(resp *http.Response) error {
	if p == nil || p.Kind != Dragonfly || resp.StatusCode < http.StatusBadRequest || resp.Header.Get(dragonflyError) == "backend" {
		return nil
	}
	drain(resp)
	return as(errdefs.ErrUnavailable, fmt.Sprintf("%s answered %d itself (%.20q)", resp.Request.URL.Host, resp.StatusCode, resp.Header.Get(dragonflyError)))
}
