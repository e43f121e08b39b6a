package admin

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// mount returns what to mount.
func (h *Handler) mount(ctx context.Context, req api.MountRequest) (m api.Mount, err error) {
	if req.Dir != "" && (!filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir) {
		return m, fmt.Errorf("directory %q is not an absolute path in its shortest form: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	name, err := api.ParseName(req.Name)
	if err != nil {
		return m, err
	}
	im, err := h.findShown(ctx, name)
	if errdefs.IsNotFound(err) && name.IsRef() {
		im, err = h.Convert(ctx, name.Ref)
	}
	if err != nil {
		return m, err
	}
	return h.Mount(ctx, im, name.Ref, req)
}
