package admin

import (
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// mount returns what to mount.
func (h *Handler) mount(r *http.Request) (any, error) {
	var req api.MountRequest
	if err := decodeBody(r, &req); err != nil {
		return nil, err
	}
	if req.Dir != "" && (!filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir) {
		return nil, fmt.Errorf("directory %q is not an absolute path in its shortest form: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	name, err := api.ParseName(req.Name)
	if err != nil {
		return nil, err
	}
	im, err := h.findShown(r.Context(), name)
	if errdefs.IsNotFound(err) && name.IsRef() {
		im, err = h.Convert(r.Context(), name.Ref)
	}
	if err != nil {
		return nil, err
	}
	return h.Mount(r.Context(), im, name.Ref, req)
}
