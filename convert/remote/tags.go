package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// Tags returns the first tags of the registry's list, at most limit, without those that are invalid
// in a reference. It returns errdefs.ErrNotFound or errdefs.ErrUnknown if the registry has no such
// list.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#listing-tags
func (r *Repository) Tags(ctx context.Context, limit int) (tags []string, err error) {
	t := r.forDocuments(ctx, has(docker.HostCapabilityPull|docker.HostCapabilityResolve))
	for t.Next(ctx) {
		tags, err = r.tags(ctx, asked(t), limit)
		t.Done(ctx, err)
	}
	return tags, r.failure(t, fmt.Sprintf("tags of %s", r))
}

// tags asks one host.
func (r *Repository) tags(ctx context.Context, e *endpoint, limit int) (tags []string, err error) {
	resp, err := r.document(ctx, e, request{path: "tags/list", query: "n=" + strconv.Itoa(limit)})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(io.LimitReader(resp.Body, convert.SmallDocument+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", e.Host, err, errdefs.ErrUnavailable)
	}
	if len(p) > convert.SmallDocument {
		return nil, fmt.Errorf("%s: the list of tags has more than %d bytes: %w", e.Host, convert.SmallDocument, errdefs.ErrUnknown)
	}
	var list struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(p, &list); err != nil {
		return nil, fmt.Errorf("%s: the list of tags: %w: %w", e.Host, err, errdefs.ErrUnknown)
	}
	for _, t := range list.Tags {
		if ref, err := NewRef(r.ref.Host, r.ref.Repository, t); err == nil && ref.Tag != "" && len(tags) < limit {
			tags = append(tags, t)
		}
	}
	return tags, nil
}
