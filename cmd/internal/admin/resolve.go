package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// minShortDigest is the shortest beginning of a digest that names an image, in hex digits.
const minShortDigest = 6

// pinPrefix is what the names of references that are pins start with.
const pinPrefix = "pin/"

// PinName returns the name of the store's reference that is the pin of ref.
func PinName(ref string) string { return pinPrefix + ref }

// originPrefix is what the names of references start with that keep models for images which containerd has as
// their registries have them.
const originPrefix = "origin/"

// OriginName returns the name of the store's reference for the image with the manifest d.
func OriginName(d digest.Digest) string { return originPrefix + d.String() }

// find returns the images that name stands for, which are several if it is the digest of an
// index or of an origin that was converted by different rules. name is a reference, or the
// digest of the converted or the origin manifest or of the file table, or the beginning of one.
func find(ctx context.Context, s *store.Store, name string) ([]store.Image, error) {
	all, err := s.Images(ctx)
	if err != nil {
		return nil, err
	}
	hex, isDigest := digestPrefix(name)
	ref, refErr := resolve.ParseRef(name)
	full := stored(ref)
	var found []store.Image
	for _, im := range all {
		byRef := refErr == nil && slices.Contains(im.Refs, full)
		byDigest := isDigest && slices.ContainsFunc([]digest.Digest{im.Manifest, im.Origin.Digest, im.Table}, func(d digest.Digest) bool {
			return d != "" && strings.HasPrefix(d.Encoded(), hex)
		})
		if byRef || byDigest {
			found = append(found, im)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case isDigest || refErr == nil:
		return nil, fmt.Errorf("model %s: %w", name, errdefs.ErrNotFound)
	}
	return nil, refErr
}

// findOne returns the one model that name stands for. Of an index with one model it is that.
func findOne(ctx context.Context, s *store.Store, name string) (store.Image, error) {
	found, err := find(ctx, s, name)
	if err != nil {
		return store.Image{}, err
	}
	models := map[digest.Digest]store.Image{}
	for _, im := range found {
		entries, err := children(ctx, s, im)
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

// children returns the models of an index that are here, each once; none if im is no index.
func children(ctx context.Context, s *store.Store, im store.Image) ([]store.Image, error) {
	if !isIndex(im) {
		return nil, nil
	}
	p, err := s.ReadBytes(ctx, im.Manifest, convert.MaxManifestSize)
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
		switch child, err := s.Image(ctx, d.Digest); {
		case err == nil:
			out = append(out, child)
		case !errdefs.IsNotFound(err):
			return nil, err
		}
	}
	return out, nil
}

// PinnedRef returns the reference that a pin is for.
func PinnedRef(p store.Ref) string { return strings.TrimPrefix(p.Name, pinPrefix) }
