package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Sources returns the registries that a table can be downloaded from.
//
// They are ordered by the pulled names. A registry from which another client resolved the same
// table is not used: anyone can run a registry that serves what others have, or only claims to.
//
// The credentials depend on the client. Pulls of containerd use those of its callers; pins, mounts
// on the host, requests on the admin socket and repairs of damage use those of the node.
type Sources struct {
	Store       *store.Store
	Facade      *registry.Handler
	Snapshotter *snapshotter.Snapshotter
	Secrets     *pullsecret.Secrets
	Log         *slog.Logger

	pruning sync.Mutex // held by PruneSecrets
}

// Pulled returns the sources of a table pulled from repositories.
func (s *Sources) Pulled(table digest.Digest, from []differ.Repository) []transfer.Source {
	images := s.images(table)
	return s.named(images, pulledNames(from, images), s.Facade.Sources)
}

// PulledNames returns the names of the repositories that a table is pulled from.
func (s *Sources) PulledNames(table digest.Digest, from []differ.Repository) []string {
	return pulledNames(from, s.images(table))
}

func pulledNames(from []differ.Repository, images []store.Image) (names []string) {
	for _, r := range from {
		r.Host = hostname.Normal(r.Host) // containerd records the host as its client wrote it
		names = append(names, withPort(r, images))
	}
	return names
}

// Known implements differ.Options.Known. The facade knows the ports of the images that it has resolved.
func (s *Sources) Known(table digest.Digest, r differ.Repository) (name string, several bool) {
	name = pulledNames([]differ.Repository{r}, s.images(table))[0]
	host, path, _ := strings.Cut(name, "/")
	host, port := hostname.Split(host)
	for _, im := range s.Store.Catalog.Images() {
		if !slices.ContainsFunc(im.Refs, func(ref string) bool { return strings.Contains(ref, "/"+path) }) {
			continue // without parsing the references of all images of all tenants
		}
		for _, n := range registry.Names(im) {
			h, p, _ := strings.Cut(n, "/")
			if h, other := hostname.Split(h); h == host && p == path && other != port {
				return name, true
			}
		}
	}
	return name, false
}

// Repositories returns the repositories with the given names, "host/path".
func Repositories(names []string) (l []differ.Repository) {
	for _, n := range names {
		host, path, _ := strings.Cut(n, "/")
		l = append(l, differ.Repository{Host: host, Name: path})
	}
	return l
}

// withPort returns the name of a repository. containerd does not always know the port of its host; the name by which
// the image was resolved has it.
func withPort(r differ.Repository, images []store.Image) string {
	name := r.String()
	for _, im := range images {
		all := registry.Names(im)
		if slices.Contains(all, name) {
			return name
		}
		for _, n := range all {
			host, path, _ := strings.Cut(n, "/")
			if h, port := hostname.Split(host); port != "" && h == r.Host && path == r.Name {
				return n
			}
		}
	}
	return name
}

// Wanted returns the sources of a table for a request on the admin socket. ref is the reference in
// the request; if it is zero, the sources are those of all references to the table.
func (s *Sources) Wanted(ctx context.Context, table digest.Digest, ref remote.Ref) ([]transfer.Source, error) {
	if ref == (remote.Ref{}) {
		return s.recorded(ctx, table, true)
	}
	images, names := s.images(table), []string{ref.Name()}
	return distinct(append(s.named(images, names, s.Facade.Sources), s.named(images, names, s.Facade.NodeSources)...)), nil
}

// recorded returns the sources recorded for the references to a table, oldest first: those of pins,
// mounts on the host, and snapshots that show the table and had all of it. A snapshot that shows it
// before it is complete can have the sources of a stranger, who must not get more than these
// sources have: if there are no others, the sources of the oldest such snapshot are used alone. It
// is unknown whether the sources of an unfinished pull have the table: if there is nothing else,
// there are no sources. A table without references, or without recorded sources, is downloaded from
// all names that its images were resolved from. With asNode, the credentials of the node are used
// for all of these, not only for pins and mounts on the host.
func (s *Sources) recorded(ctx context.Context, table digest.Digest, asNode bool) ([]transfer.Source, error) {
	refs := s.Store.Catalog.RefsOf(table)
	images := s.images(table)
	host, err := s.Snapshotter.HostRefs(ctx)
	if err != nil {
		return nil, err
	}
	from := func(names []string, pin bool) (l []transfer.Source) {
		if !pin {
			l = s.named(images, names, s.Facade.Sources)
		}
		if pin || asNode {
			l = append(l, s.named(images, names, s.Facade.NodeSources)...)
		}
		return l
	}
	var out []transfer.Source
	var partly []string
	known, pending := false, false
	for _, r := range refs {
		pin := strings.HasPrefix(r.Name, modelname.PinPrefix) || host[r.Name]
		origin := strings.HasPrefix(r.Name, modelname.OriginPrefix)
		switch {
		case origin:
			known = known || len(r.Sources) > 0
			out = append(out, from(r.Sources, false)...)
		case !pin && !s.Snapshotter.Shows(r):
			pending = true
		case !pin && !s.had(r):
			if len(partly) == 0 {
				partly = r.Sources
			}
		default:
			known = known || len(r.Sources) > 0
			out = append(out, from(r.Sources, pin)...)
		}
	}
	switch {
	case known:
	case len(partly) > 0:
		out = from(partly, false)
	case !pending:
		for _, im := range images {
			out = append(out, from(registry.Names(im), false)...)
		}
	}
	return distinct(out), nil
}

// Order returns the order in which a table is read, which sources have beside one of its images. Registries are asked
// for the images that were resolved from them only.
func (s *Sources) Order(ctx context.Context, table digest.Digest, sources []transfer.Source) (filetable.Order, error) {
	err := fmt.Errorf("no image of table %s was resolved from its sources: %w", table, errdefs.ErrNotFound)
	for _, im := range s.images(table) {
		for _, src := range sources {
			repository, ok := src.Fetcher.(*remote.Repository)
			if !ok || !slices.Contains(registry.Names(im), src.Name) {
				continue
			}
			var o filetable.Order
			if o, err = registry.ReadOrder(ctx, repository, im.Manifest); err == nil {
				return o, nil
			}
		}
	}
	return filetable.Order{}, err
}

// distinct returns the sources without duplicates.
func distinct(l []transfer.Source) []transfer.Source {
	seen := map[string]bool{}
	return slices.DeleteFunc(l, func(s transfer.Source) bool {
		was := seen[s.Key()]
		seen[s.Key()] = true
		return was
	})
}

// had reports whether the snapshot of a reference shows a table of which it had all files.
func (s *Sources) had(r store.Ref) bool {
	view := s.Snapshotter.ViewOf(r)
	return view == "" || complete(s.Store, Shown{view, r.Table})
}

// Shown returns the sources of a table that is shown in a view: only those of its snapshot. If
// these are unknown, they are those of all references to the table; if the snapshot does not show
// it yet, or is gone, there are none.
func (s *Sources) Shown(ctx context.Context, view string, table digest.Digest) ([]transfer.Source, error) {
	r, err := s.Store.Catalog.Ref(view)
	switch {
	case view == "" || err == nil && len(r.Sources) == 0:
		return s.recorded(ctx, table, false)
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil || !s.Snapshotter.Shows(r):
		return nil, err
	}
	images := s.images(table)
	l := s.named(images, r.Sources, s.Facade.Sources)
	if host, err := s.Snapshotter.HostRefs(ctx); err != nil {
		return nil, err
	} else if host[view] {
		l = append(l, s.named(images, r.Sources, s.Facade.NodeSources)...)
	}
	return distinct(l), nil
}

// images returns the images of a table. There are none if the facade did not resolve it.
func (s *Sources) images(table digest.Digest) []store.Image {
	return s.Store.Catalog.ImagesByTable(table)
}

// named returns the sources of names in their order, as facade returns them.
func (s *Sources) named(images []store.Image, names []string, facade func(store.Image, ...string) []transfer.Source) []transfer.Source {
	var out []transfer.Source
	for _, n := range names {
		var by store.Image // the one resolved from the name
		for _, im := range images {
			if slices.Contains(registry.Names(im), n) {
				by = im
				break
			}
			if by.Manifest == "" {
				by = im
			}
		}
		out = append(out, facade(by, n)...)
	}
	return out
}
