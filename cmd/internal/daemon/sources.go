package daemon

import (
	"context"
	"net"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Sources are ordered by the name that is pulled. That others got the same table elsewhere is no
// reason to ask there: everybody can make a registry that serves what others have, or only says so.
//
// Credentials go by who wanted the model. For what containerd pulled they are those that its callers
// gave, for pins, mounts on the host and for who asks over the admin socket those of the node.

// pulled returns where the blobs of a table can be fetched that is pulled from repositories.
func (d *Daemon) pulled(ctx context.Context, table digest.Digest, from []differ.Repository) []transfer.Source {
	images := d.images(ctx, table)
	return d.named(images, pulledNames(from, images), d.facade.Sources)
}

// pulledNames returns the names of repositories that images were pulled from.
func pulledNames(from []differ.Repository, images []store.Image) (names []string) {
	for _, r := range from {
		names = append(names, withPort(r, images))
	}
	return names
}

// withPort returns the name of a repository: containerd does not always know the port of its host,
// but who resolved the image did.
func withPort(r differ.Repository, images []store.Image) string {
	name := r.String()
	for _, im := range images {
		all := registry.Names(im)
		if slices.Contains(all, name) {
			return name
		}
		for _, n := range all {
			host, path, _ := strings.Cut(n, "/")
			if h, _, err := net.SplitHostPort(host); err == nil && h == r.Host && path == r.Name {
				return n
			}
		}
	}
	return name
}

// wanted returns where the blobs of a table can be fetched for who asks for it by a reference. If
// name is something else, such as a digest, it is from where those got it who refer to it.
func (d *Daemon) wanted(ctx context.Context, table digest.Digest, name string) ([]transfer.Source, error) {
	ref, err := resolve.ParseRef(name)
	if err != nil {
		return d.recorded(ctx, table, true)
	}
	images, names := d.images(ctx, table), []string{ref.Name()}
	return distinct(append(d.named(images, names, d.facade.Sources), d.named(images, names, d.facade.NodeSources)...)), nil
}

// recorded returns where the blobs of a table can be fetched by what is recorded for the references
// to it, oldest first: pins and mounts on the host, and snapshots that show it and had all of it. What one that shows it before it
// is complete says may be a stranger's, who is to get what his own sources have: the oldest counts if there
// is nothing else, alone. Of a pull that goes on nobody knows whether its sources have anything; then there
// are none. A table that nobody refers to, or without a record, is fetched from wherever images of it were
// resolved. With asNode the credentials of the node count for all of that, not only for pins and mounts on the host.
func (d *Daemon) recorded(ctx context.Context, table digest.Digest, asNode bool) ([]transfer.Source, error) {
	refs, err := d.store.RefsOf(ctx, table)
	if err != nil {
		return nil, err
	}
	images := d.images(ctx, table)
	host, err := d.snapshotter.HostRefs(ctx)
	if err != nil {
		return nil, err
	}
	from := func(names []string, pin bool) (l []transfer.Source) {
		if !pin {
			l = d.named(images, names, d.facade.Sources)
		}
		if pin || asNode {
			l = append(l, d.named(images, names, d.facade.NodeSources)...)
		}
		return l
	}
	var out []transfer.Source
	var partly []string
	known, pending := false, false
	for _, r := range refs {
		pin := strings.HasPrefix(r.Name, admin.PinName("")) || host[r.Name]
		origin := strings.HasPrefix(r.Name, admin.OriginName(""))
		switch {
		case origin:
			known = known || len(r.Sources) > 0
			out = append(out, from(r.Sources, false)...)
		case !pin && !d.snapshotter.Shows(r):
			pending = true
		case !pin && !d.had(ctx, r):
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

// distinct returns sources, each once.
func distinct(l []transfer.Source) []transfer.Source {
	seen := map[string]bool{}
	return slices.DeleteFunc(l, func(s transfer.Source) bool {
		was := seen[s.Key()]
		seen[s.Key()] = true
		return was
	})
}

// had says whether the snapshot of a reference shows a table of which it had all.
func (d *Daemon) had(ctx context.Context, r store.Ref) bool {
	view := d.snapshotter.ViewOf(r)
	return view == "" || complete(ctx, d.store, shownTable{view, r.Table})
}

// shownFrom returns where the blobs of a table can be fetched that is shown in a view: where its snapshot got
// it, and nowhere that others got it. If that is not known, it is recorded; if the snapshot does not show
// it yet, nothing is.
func (d *Daemon) shownFrom(ctx context.Context, view string, table digest.Digest) ([]transfer.Source, error) {
	r, err := d.store.Ref(ctx, view)
	switch {
	case errdefs.IsNotFound(err) || err == nil && len(r.Sources) == 0:
		return d.recorded(ctx, table, false)
	case err != nil || !d.snapshotter.Shows(r):
		return nil, err
	}
	images := d.images(ctx, table)
	l := d.named(images, r.Sources, d.facade.Sources)
	if host, err := d.snapshotter.HostRefs(ctx); err != nil {
		return nil, err
	} else if host[view] {
		l = append(l, d.named(images, r.Sources, d.facade.NodeSources)...)
	}
	return distinct(l), nil
}

// images returns the images of a table. None is no error: the image did not come through the facade.
func (d *Daemon) images(ctx context.Context, table digest.Digest) []store.Image {
	images, err := d.store.ImagesByTable(ctx, table)
	if err != nil {
		d.log.Warn("images of a table are not known", "digest", table, "err", err)
	}
	return images
}

// named returns the sources that names stand for, in their order, as facade returns them.
func (d *Daemon) named(images []store.Image, names []string, facade func(store.Image, ...string) []transfer.Source) []transfer.Source {
	var out []transfer.Source
	for _, n := range names {
		var by store.Image // that was resolved from the name
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
