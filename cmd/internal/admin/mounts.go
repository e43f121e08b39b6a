package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// MountRequest asks for the files of a model to be made readable for processes of the host.
type MountRequest struct {
	Name string `json:"name"` // a reference or a digest

	// Dir is where it will be mounted, absolute. Empty: the daemon says where.
	Dir string `json:"dir,omitempty"`
}

// Mount is a model for processes of the host. The client makes the mount; the daemon keeps the model for as long as
// any process has it, and until a minute after.
type Mount struct {
	Dir      string        `json:"dir"`
	Name     string        `json:"name"` // by which it was asked for
	Table    digest.Digest `json:"table"`
	Snapshot string        `json:"snapshot"` // id
	Created  time.Time     `json:"created"`

	// Mounted says that its files are part of a mount.
	Mounted bool `json:"mounted"`

	// Type, Source and Options are what to mount at Dir; only in the answer to a MountRequest.
	Type    string   `json:"type,omitempty"`
	Source  string   `json:"source,omitempty"`
	Options []string `json:"options,omitempty"`
}

// mount answers with what to mount.
func (h *Handler) mount(r *http.Request) (any, error) {
	var req MountRequest
	if err := decodeBody(r, &req); err != nil {
		return nil, err
	}
	if req.Dir != "" && (!filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir) {
		return nil, fmt.Errorf("directory %q is not an absolute path in its shortest form: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	im, err := h.findShown(r.Context(), req.Name)
	if ref, refErr := resolve.ParseRef(req.Name); errdefs.IsNotFound(err) && refErr == nil {
		im, err = h.Convert(r.Context(), ref)
	}
	if err != nil {
		return nil, err
	}
	return h.Mount(r.Context(), im, req)
}

// Mount prepares a mount and returns what to mount.
func (c *Client) Mount(ctx context.Context, r MountRequest) (v Mount, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/mount", r, &v)
}

// Mounts returns all mounts on the host.
func (c *Client) Mounts(ctx context.Context) (v []Mount, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/mounts", nil, &v)
}

// Unmounted says that the mount at a directory is gone.
func (c *Client) Unmounted(ctx context.Context, dir string) error {
	return c.call(ctx, http.MethodDelete, "/v1/mount?dir="+url.QueryEscape(dir), nil, new(struct{}))
}
