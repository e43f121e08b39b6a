package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	keep := func(m ocispec.Descriptor) {
		if slices.Contains(types, m.ArtifactType) && len(found) < limit {
			found = append(found, m)
		}
	}
	t := r.forDocuments(ctx, has(docker.HostCapabilityPull))
	for t.Next(ctx) {
		found = nil
		err := r.referrers(ctx, asked(t), d, keep)
		if err == nil && len(found) == 0 {
			err = errdefs.ErrNotFound
		}
		t.Done(ctx, err)
	}
	err := r.failure(t, fmt.Sprintf("referrers of %s@%s", r, d))
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
	found = nil
	if err := eachReferrer(m.Bytes, keep); err != nil {
		return nil, fmt.Errorf("%s:%s: %w", r, ReferrersTag(d), err)
	}
	return found, nil
}

// referrers asks one host, and calls keep for what it has.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#listing-referrers
func (r *Repository) referrers(ctx context.Context, e *endpoint, d digest.Digest, keep func(ocispec.Descriptor)) error {
	q := request{path: "referrers/" + d.String()}
	for range maxReferrersPages {
		resp, err := r.document(ctx, e, q)
		if err != nil {
			return err
		}
		p, err := io.ReadAll(io.LimitReader(resp.Body, convert.MaxManifestSize+1))
		resp.Body.Close()
		if err != nil {
			return fmt.Errorf("%s: %w: %w", e.Host, err, errdefs.ErrUnavailable)
		}
		if err := eachReferrer(p, keep); err != nil {
			return fmt.Errorf("%s: %w", e.Host, err)
		}
		if q.query = nextPage(resp.Response); q.query == "" {
			break
		}
	}
	return nil
}

// eachReferrer calls keep for each descriptor in a list of referrers, one after another: a list of 8 MiB can have
// millions, in a hundred times its size.
func eachReferrer(p []byte, keep func(ocispec.Descriptor)) error {
	bad := func(err error) error {
		return fmt.Errorf("the list of referrers: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(p) > convert.MaxManifestSize {
		return bad(fmt.Errorf("more than %d bytes", convert.MaxManifestSize))
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return bad(cmp.Or(err, errNoObject))
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return bad(err)
		}
		if key != "manifests" {
			var other json.RawMessage
			if err := dec.Decode(&other); err != nil {
				return bad(err)
			}
			continue
		}
		start, err := dec.Token()
		if start == nil && err == nil { // null
			continue
		}
		if err != nil || start != json.Delim('[') {
			return bad(cmp.Or(err, errNoObject))
		}
		for dec.More() {
			var m ocispec.Descriptor
			if err := dec.Decode(&m); err != nil {
				return bad(err)
			}
			keep(m)
		}
		if _, err := dec.Token(); err != nil {
			return bad(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return bad(err)
	}
	return nil
}

// errNoObject is the cause for a list of referrers that is none.
var errNoObject = errors.New("it is no index")

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
