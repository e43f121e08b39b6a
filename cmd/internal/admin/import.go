package admin

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// importModels lists the models of an Ollama store.
func (h *Handler) importModels(ctx context.Context, req api.ImportRequest) ([]api.LocalModel, error) {
	if err := checkImport(&req); err != nil {
		return nil, err
	}
	return h.ImportModels(ctx, req.Dir)
}

// importPlan returns what an import would do.
func (h *Handler) importPlan(ctx context.Context, req api.ImportRequest) (p api.ImportPlan, err error) {
	if err := checkImport(&req); err != nil {
		return p, err
	}
	return h.ImportPlan(ctx, req)
}

// checkImport cleans the directory in a request, or returns errdefs.ErrInvalidArgument.
func checkImport(req *api.ImportRequest) error {
	if !filepath.IsAbs(req.Dir) {
		return fmt.Errorf("directory %.300q is not absolute: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	req.Dir = filepath.Clean(req.Dir)
	return checkTTL(req.TTL)
}

// importModel imports one model.
func (h *Handler) importModel(ctx context.Context, req api.ImportRequest, out *lines) error {
	if err := checkImport(&req); err != nil {
		return err
	}
	im, linked, err := h.Import(ctx, req, out.events)
	if err != nil {
		return err
	}
	return out.send(api.ImportEvent{Event: api.Event{Status: api.StatusSuccess, Image: &im}, Linked: &linked})
}
