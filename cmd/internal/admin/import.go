package admin

import (
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// importModels lists the models of an Ollama store.
func (h *Handler) importModels(r *http.Request) (any, error) {
	req, err := decodeImport(r)
	if err != nil {
		return nil, err
	}
	return h.ImportModels(r.Context(), req.Dir)
}

// importPlan returns what an import would do.
func (h *Handler) importPlan(r *http.Request) (any, error) {
	req, err := decodeImport(r)
	if err != nil {
		return nil, err
	}
	return h.ImportPlan(r.Context(), req)
}

// decodeImport returns the request in r, or errdefs.ErrInvalidArgument.
func decodeImport(r *http.Request) (req api.ImportRequest, err error) {
	if err := decodeBody(r, &req); err != nil {
		return req, err
	}
	switch {
	case !filepath.IsAbs(req.Dir):
		return req, fmt.Errorf("directory %.300q is not absolute: %w", req.Dir, errdefs.ErrInvalidArgument)
	case req.TTL < 0:
		return req, fmt.Errorf("ttl %v is negative: %w", req.TTL, errdefs.ErrInvalidArgument)
	}
	req.Dir = filepath.Clean(req.Dir)
	return req, nil
}

// importModel imports one model.
func (h *Handler) importModel(w http.ResponseWriter, r *http.Request) {
	out := newStream(w)
	req, err := decodeImport(r)
	if err != nil {
		_ = out.send(api.Event{Status: api.StatusError, Error: api.Wrap(err)})
		return
	}
	im, linked, err := h.Import(r.Context(), req, out.events)
	if err != nil {
		_ = out.send(api.Event{Status: api.StatusError, Error: api.Wrap(err)})
		return
	}
	_ = out.send(api.ImportEvent{Event: api.Event{Status: api.StatusSuccess, Image: &im}, Linked: &linked})
}
