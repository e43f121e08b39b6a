package ctrd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AskTimeout limits the time of a request to containerd.
const AskTimeout = 5 * time.Second

// A State is what a running containerd says of itself.
type State struct {
	Version string // such as "v2.4.2"
	Plugins []*introspection.Plugin

	// CRI are the conditions of CRI, such as RuntimeReady and NetworkReady, with why they are not
	// fulfilled, or "". Nil if containerd has no CRI.
	CRI map[string]string
}

// State asks containerd what it says of itself. CRI is asked too if it was loaded, and its
// error is a condition of its own: it answers later than the rest.
func (c *Client) State(ctx context.Context) (*State, error) {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	plugins, err := c.plugins(ctx)
	if err != nil {
		return nil, err
	}
	s := &State{Plugins: plugins}
	if s.Version, err = c.Version(ctx); err != nil {
		return nil, err
	}
	if p := s.Plugin("io.containerd.grpc.v1", "cri"); p == nil || p.InitErr != nil {
		return s, nil // the error is that of the plugin
	}
	s.CRI = map[string]string{}
	res, err := cri.NewRuntimeServiceClient(c.conn).Status(ctx, &cri.StatusRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented: // disabled, or not registered yet
		s.CRI["CRI"] = "it does not answer"
	case err != nil:
		s.CRI["CRI"] = status.Convert(err).Message()
	default:
		for _, is := range res.GetStatus().GetConditions() {
			s.CRI[is.Type] = ""
			if !is.Status {
				s.CRI[is.Type] = strings.TrimSpace(is.Reason + " " + is.Message)
			}
		}
	}
	return s, nil
}

// Plugin returns a plugin, or nil if containerd has none of this type and name.
func (s *State) Plugin(kind, id string) *introspection.Plugin {
	for _, p := range s.Plugins {
		if p.Type == kind && p.ID == id {
			return p
		}
	}
	return nil
}

// Parsed returns the minor release of containerd, or the newest tested one if its version is unknown.
func (s *State) Parsed() containerdversion.Version {
	if s != nil {
		if v, err := containerdversion.Parse(s.Version); err == nil {
			return v
		}
	}
	return containerdversion.Newest
}

// A Health is what of a containerd is well, and what is not.
type Health struct {
	Version string `json:"version"` // of containerd

	// Parts are plugins as "type.id" and conditions of CRI as "CRI: condition", with why they are not
	// well, or "".
	Parts map[string]string `json:"parts"`
}

// Health returns what is well. A plugin that leaves itself out on this machine (an unsupported file
// system, for example) is not well, and neither before nor after a change.
func (s *State) Health() Health {
	h := Health{Version: s.Version, Parts: map[string]string{}}
	for _, p := range s.Plugins {
		h.Parts[p.Type+"."+p.ID] = ""
		if p.InitErr != nil {
			h.Parts[p.Type+"."+p.ID] = p.InitErr.Message
			if p.InitErr.Message == "" {
				h.Parts[p.Type+"."+p.ID] = "it did not start"
			}
		}
	}
	for name, why := range s.CRI {
		h.Parts["CRI: "+name] = why
	}
	return h
}

// Worse returns, sorted, what was well before and is not any more, or is new and not well. Parts that
// another version does not have are not missed, and of a CRI that did not answer, as right after a start of containerd,
// no condition is known.
func (h Health) Worse(before Health) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(h.Parts)) {
		was, known := before.Parts[name]
		if !known && strings.HasPrefix(name, "CRI: ") && before.Parts["CRI: CRI"] != "" {
			continue
		}
		if why := h.Parts[name]; why != "" && (!known || was == "") {
			out = append(out, fmt.Sprintf("%s: %s", name, why))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.Parts)) {
		if _, ok := h.Parts[name]; !ok && before.Parts[name] == "" && h.Version == before.Version {
			out = append(out, name+": it is gone")
		}
	}
	return out
}
