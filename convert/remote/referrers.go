package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxReferrersPages limits the pages read of a list of referrers. Each has at most
// convert.MaxManifestSize bytes.
const maxReferrersPages = 4

// ReferrersTag returns the tag with the list of referrers of a manifest in registries without the
// referrers API.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#referrers-tag-schema
func ReferrersTag(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

// Referrers returns the manifests that refer to a manifest and have one of the types
// (artifactType), at most limit, in the order of the registry. If a host has none, it requests the
// next one: mirrors may lack referrers that were attached later.
func (r *Repository) Referrers(ctx context.Context, d digest.Digest, limit int, types ...string) ([]ocispec.Descriptor, error) {
	var found []ocispec.Descriptor
	keep := func(list []ocispec.Descriptor) error {
		for _, m := range list {
			if slices.Contains(types, m.ArtifactType) && len(found) < limit {
				found = append(found, m)
			}
		}
		if len(found) == 0 {
			return errdefs.ErrNotFound
		}
		return nil
	}
	err := r.read(ctx, docker.HostCapabilityPull, func(e *endpoint) error {
		list, err := r.referrers(ctx, e, d)
		if err != nil {
			return err
		}
		return keep(list)
	})
	// Registries without the referrers API return various errors.
	if err == nil || !errdefs.IsNotFound(err) && !errdefs.IsUnknown(err) {
		return found, err
	}
	m, err := r.Manifest(ctx, ReferrersTag(d))
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := parseReferrers(m.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s:%s: %w", r, ReferrersTag(d), err)
	}
	_ = keep(list) // an empty list is valid
	return found, nil
}

// referrers asks one host.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#listing-referrers
func (r *Repository) referrers(ctx context.Context, e *endpoint, d digest.Digest) (all []ocispec.Descriptor, err error) {
	q := request{path: "referrers/" + d.String()}
	for range maxReferrersPages {
		resp, err := r.do(ctx, e, q)
		if err != nil {
			return nil, err
		}
		p, err := io.ReadAll(io.LimitReader(resp.Body, convert.MaxManifestSize+1))
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", e.Host, err, errdefs.ErrUnavailable)
		}
		page, err := parseReferrers(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Host, err)
		}
		all = append(all, page...)
		if q.query = nextPage(resp.Response); q.query == "" {
			break
		}
	}
	return all, nil
}

func parseReferrers(p []byte) ([]ocispec.Descriptor, error) {
	if len(p) > convert.MaxManifestSize {
		return nil, fmt.Errorf("the list of referrers has more than %d bytes: %w", convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	var index ocispec.Index
	if err := json.Unmarshal(p, &index); err != nil {
		return nil, fmt.Errorf("the list of referrers: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return index.Manifests, nil
}

// nextPage returns the query of the next page, or "". The rest of its address is ignored.
func nextPage(resp *http.Response) string {
	for _, l := range resp.Header.Values("Link") {
		address, params, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(l), "<"), ">")
		if !ok || !strings.Contains(params, `rel="next"`) {
			continue
		}
		if u, err := resp.Request.URL.Parse(address); err == nil {
			return u.RawQuery
		}
	}
	return ""
}
