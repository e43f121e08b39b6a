package setup

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/distribution/reference"
)

// A need is an image without which ballastd, or any pod, does not start.
type need struct {
	ref  string
	what string
	host string // of its registry
	tag  bool   // it has a tag, which must be resolved
}

// sandbox returns the sandbox image of pods.
func (v *view) sandbox() string {
	if v.Containerd == nil {
		return v.Version.Sandbox()
	}
	return v.Containerd.Sandbox()
}

// needs returns the images that a node needs to recover.
func (v *view) needs(o *Options) ([]need, error) {
	var all []need
	for i, ref := range append([]string{v.sandbox()}, o.Images...) {
		named, err := reference.ParseNormalizedNamed(ref)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w", ref, err)
		}
		_, digested := named.(reference.Digested)
		n := need{ref: reference.TagNameOnly(named).String(), what: "an image that the node needs", host: reference.Domain(named), tag: !digested}
		if i == 0 {
			n.what = "the sandbox image of all pods"
		}
		all = append(all, n)
	}
	return all, nil
}

// heal returns which needed images could not be pulled while ballastd is stopped, if these
// registries are closed.
//
// containerd selects hosts.toml files by registry only. A registry with its own closed file still
// serves digests. With a closed "_default", a registry without its own file serves nothing without
// ballastd, so registries of needed images get an open file of their own.
//
//	                       by tag       by digest    on the node and pinned
//	no file, or an open one  pulled       pulled       present
//	closed by its own file   fails        pulled       present
//	closed by _default       gets its own open file
func (v *view) heal(o *Options, closed []string) (refuse, notes, open []string, err error) {
	needs, err := v.needs(o)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, n := range needs {
		switch {
		case slices.Contains(closed, n.host):
			switch {
			case !n.tag:
			case v.running.pinned[n.ref]:
				notes = append(notes, fmt.Sprintf("%s, %s, comes from %s, which is closed while ballastd is stopped; it is on the node and pinned, do not remove it", n.ref, n.what, n.host))
			default:
				refuse = append(refuse, fmt.Sprintf("%s, %s, comes from %s: it cannot be pulled while ballastd is stopped", n.ref, n.what, n.host))
			}
		case slices.Contains(closed, snippet.DefaultRegistry) && !v.hasHosts(n.host):
			open = append(open, n.host)
		}
	}
	for _, ref := range v.running.used {
		named, err := reference.ParseNormalizedNamed(ref)
		if err != nil {
			continue // an ID
		}
		if _, digested := named.(reference.Digested); digested || !slices.Contains(closed, reference.Domain(named)) || slices.ContainsFunc(needs, func(n need) bool { return n.ref == ref }) {
			continue
		}
		notes = append(notes, fmt.Sprintf("%s, which a pod uses, comes from %s: while ballastd is stopped it cannot be pulled by its tag; if the network or ballastd needs it, name it by digest", ref, reference.Domain(named)))
	}
	return refuse, notes, sorted(open), nil
}

// hasHosts reports whether a registry has a hosts.toml that setup did not write.
func (v *view) hasHosts(registry string) bool {
	p := v.hostsFile(registry)
	if v.record != nil {
		if _, ours := v.record.Files[p]; ours {
			return false
		}
	}
	return v.Exists(p)
}

// openHosts returns the hosts.toml at a path of a registry that is used without ballastd.
func (v *view) openHosts(registry, p string) ([]byte, error) {
	names, err := v.List(filepath.Dir(p))
	if err != nil {
		return nil, err
	}
	hosts := snippet.Hosts{Registry: registry, PlainHTTP: local(registry)}
	hosts.Certificates(names)
	return fmt.Appendf(nil, `# %s without ballast: containerd asks it itself, although _default is closed. Written by "ballast setup":
# what the node needs to get ballastd back is of this registry, or "ballast setup --open" was asked for.
# Models of it arrive unconverted.
server = %q
%s`, registry, hosts.Server(), hosts.ServerKeys), nil
}

// Unreachable returns the images that the node needs and that could not be pulled while ballastd is
// stopped; none if the host was not set up.
func Unreachable(ctx context.Context, root string) ([]string, error) {
	o, err := Recorded(root)
	if err != nil {
		return nil, err
	}
	o.Host = root
	v, err := look(ctx, &o)
	if err != nil || v.record == nil {
		return nil, err
	}
	closed, err := v.closed()
	if err != nil {
		return nil, err
	}
	stuck, _, open, err := v.heal(&o, closed)
	for _, registry := range open {
		if !v.Exists(v.hostsFile(registry)) {
			stuck = append(stuck, "an image that the node needs is of "+registry+", and _default is closed")
		}
	}
	return stuck, err
}
