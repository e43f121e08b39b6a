package admin

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// hydrate downloads the rest of a model.
func (h *Handler) hydrate(ctx context.Context, req api.HydrateRequest, out *lines) error {
	name, err := api.ParseName(req.Name)
	if err != nil {
		return err
	}
	im, err := h.findShown(ctx, name)
	if err != nil {
		return err
	}
	last := api.Event{Status: api.StatusSuccess, Ref: req.Name, Image: &im}
	if name.IsRef() {
		last.Ref = name.Ref.Recorded()
	}
	if _, err := h.Store.Files(ctx, im.Table); err != nil { // not complete
		err := h.Hydrate(ctx, im, name.Ref, req.Wait, out.events)
		switch {
		case err != nil:
			last = api.Event{Status: api.StatusError, Ref: last.Ref, Error: api.Wrap(err)}
		case !req.Wait && h.Store.Paused():
			last.Status = api.StatusPaused
		case !req.Wait:
			last.Status = api.StatusStarted
		}
	}
	return out.send(last)
}

// pause pauses or resumes background downloads.
func (h *Handler) pause(_ context.Context, req api.PauseRequest) (api.PauseRequest, error) {
	if req.Paused {
		h.Store.Pause()
		h.Log.Warn("downloads that nobody waits for are paused; readers are served")
	} else {
		h.Store.Resume()
		h.Log.Info("downloads that nobody waits for go on")
	}
	return api.PauseRequest{Paused: h.Store.Paused()}, nil
}

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
