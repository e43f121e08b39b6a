package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// find returns the images that a name refers to: several if it is the digest of an index, or of an
// origin that was converted by different rules. The digest is that of a converted manifest, an
// origin or a table.
func (h *Handler) find(name modelname.Name) (found []store.Image, err error) {
	if name.IsRef() {
		found = h.Store.Catalog.ImagesByRef(name.Ref.Recorded())
	} else { // the store has no index by prefixes of digests
		found = h.Store.Catalog.Images()
		found = slices.DeleteFunc(found, func(im store.Image) bool {
			return !name.Matches(im.Manifest) && !name.Matches(im.Origin.Digest) && !name.Matches(im.Table)
		})
	}
	if len(found) == 0 {
		hint := ""
		if name.IsRef() && name.Ref.Tag == "latest" && name.Ref.Digest == "" {
			hint = remote.LatestHint
		}
		return nil, fmt.Errorf("%s: no such model on this node (\"ballast ls\" lists all)%s: %w", name, hint, errdefs.ErrNotFound)
	}
	return found, nil
}

// findOne returns the one model that a name refers to. For an index with one model it is that
// model.
func (h *Handler) findOne(name modelname.Name) (store.Image, error) {
	found, err := h.find(name)
	if err != nil {
		return store.Image{}, err
	}
	models := map[digest.Digest]store.Image{}
	for _, im := range found {
		entries, err := h.children(im)
		if err != nil {
			return store.Image{}, err
		}
		for _, e := range append(entries, im) {
			if !isIndex(e) {
				models[e.Manifest] = e
			}
		}
	}
	names := slices.Sorted(maps.Keys(models))
	switch len(names) {
	case 0:
		return store.Image{}, fmt.Errorf("%s is an index, and none of its models is here: %w", name, errdefs.ErrNotFound)
	case 1:
		return models[names[0]], nil
	}
	return store.Image{}, fmt.Errorf("%s stands for %d models, say which: %v: %w", name, len(names), names, errdefs.ErrFailedPrecondition)
}

// isIndex reports whether an image is an index of converted models.
func isIndex(im store.Image) bool { return im.Table == "" }

// children returns the models of an index that are on the node, without duplicates; none if im is
// not an index.
func (h *Handler) children(im store.Image) ([]store.Image, error) {
	if !isIndex(im) {
		return nil, nil
	}
	p, err := h.Store.ReadDocument(im, im.Manifest, convert.MaxManifestSize)
	if err != nil {
		return nil, err
	}
	m, err := convert.ParseManifest(p)
	if err != nil {
		return nil, err
	}
	var out []store.Image
	seen := map[digest.Digest]bool{}
	for _, d := range m.Manifests {
		if seen[d.Digest] {
			continue // listed for several platforms
		}
		seen[d.Digest] = true
		switch child, err := h.Store.Catalog.Image(d.Digest); {
		case err == nil:
			out = append(out, child)
		case !errdefs.IsNotFound(err):
			return nil, err
		}
	}
	return out, nil
}

// An unnamedModel is a model without an image.
type unnamedModel struct {
	im      store.Image // without manifest and references
	sources []string    // see wire.Image.Sources
}

// unnamed returns the models without an image that snapshots show or that are being downloaded. They
// were converted before they were pushed, so containerd did not need the facade to pull them, or
// their image was removed. Their name is the digest of their table.
func (h *Handler) unnamed(images []store.Image, refs []store.Ref, work []wire.Job) ([]unnamedModel, error) {
	known := map[digest.Digest]bool{"": true}
	for _, im := range images {
		known[im.Table] = true
	}
	work = slices.DeleteFunc(slices.Clone(work), func(j wire.Job) bool { return !j.Ended.IsZero() })
	names := map[digest.Digest][]string{} // that models had
	for _, j := range work {
		if j.Ref != j.Table.String() {
			names[j.Table] = []string{j.Ref}
		}
	}
	var out []unnamedModel
	add := func(table digest.Digest, since time.Time, sources []string) error {
		if known[table] {
			return nil
		}
		known[table] = true
		t, err := h.Store.Table(table)
		if errdefs.IsNotFound(err) {
			return nil // its snapshot is about to be removed
		} else if err != nil {
			return err
		}
		im := store.Image{Table: table, Origin: t.Origin, Created: since, Used: since}
		for _, f := range t.Files {
			im.Size += f.Size
		}
		if names[table] != nil {
			sources = names[table]
		}
		out = append(out, unnamedModel{im, sources})
		return nil
	}
	for _, r := range refs {
		if strings.HasPrefix(r.Name, modelname.SnapshotPrefix) {
			if err := add(r.Table, r.Created, r.Sources); err != nil {
				return nil, err
			}
		}
	}
	for _, j := range work {
		if err := add(j.Table, j.Started, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// findShown is findOne, but name can also be the digest of the table of a model of unnamed.
func (h *Handler) findShown(ctx context.Context, name modelname.Name) (store.Image, error) {
	im, err := h.findOne(name)
	if name.IsRef() || !errdefs.IsNotFound(err) {
		return im, err
	}
	refs := slices.DeleteFunc(h.Store.Catalog.Refs(modelname.SnapshotPrefix), func(r store.Ref) bool { return !name.Matches(r.Table) })
	work := slices.DeleteFunc(h.Jobs.Status(ctx).Jobs, func(j wire.Job) bool { return !name.Matches(j.Table) })
	shown, rerr := h.unnamed(nil, refs, work)
	switch {
	case rerr != nil:
		return im, rerr
	case len(shown) == 0:
		return im, err
	case len(shown) == 1:
		return shown[0].im, nil
	}
	return im, fmt.Errorf("%s stands for %d models, give more of the digest: %w", name, len(shown), errdefs.ErrFailedPrecondition)
}
