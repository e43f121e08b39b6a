package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/containerd/errdefs"
)

// pause pauses or resumes background downloads.
func (h *Handler) pause(_ context.Context, req wire.PauseRequest) (wire.PauseRequest, error) {
	if req.Paused {
		h.Store.Pause()
		h.Log.Warn("downloads that nobody waits for are paused; readers are served")
	} else {
		h.Store.Resume()
		h.Log.Info("downloads that nobody waits for go on")
	}
	return wire.PauseRequest{Paused: h.Store.Paused()}, nil
}

// importModels returns the names of the models of an Ollama store.
func (h *Handler) importModels(ctx context.Context, req wire.ImportRequest) ([]string, error) {
	if err := checkImport(&req); err != nil {
		return nil, err
	}
	return h.Jobs.ImportModels(ctx, req.Dir)
}

// checkImport cleans the directory in a request, or returns errdefs.ErrInvalidArgument.
func checkImport(req *wire.ImportRequest) error {
	if !filepath.IsAbs(req.Dir) {
		return fmt.Errorf("directory %.300q is not absolute: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	req.Dir = filepath.Clean(req.Dir)
	return checkTTL(req.TTL)
}

// importModel imports one model.
func (h *Handler) importModel(ctx context.Context, req wire.ImportRequest, out *lines) error {
	if err := checkImport(&req); err != nil {
		return err
	}
	imported, err := h.Jobs.Import(ctx, req, out.events)
	if err != nil {
		return err
	}
	return out.send(wire.ImportEvent{Event: wire.Event{Status: wire.StatusSuccess}, Imported: imported})
}

// importArchive imports the models of an archive. The client of a stream gets an error at once, and ends it then.
func (h *Handler) importArchive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := &lines{w: w, enc: json.NewEncoder(w)}
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1.1 has it
	var req wire.ArchiveRequest
	dec := json.NewDecoder(strings.NewReader(r.FormValue("request")))
	dec.DisallowUnknownFields()
	err := dec.Decode(&req)
	switch {
	case err != nil:
		err = fmt.Errorf("request: %w: %w", err, errdefs.ErrInvalidArgument)
	case req.Path != "" && !filepath.IsAbs(req.Path):
		err = fmt.Errorf("path %.300q is not absolute: %w", req.Path, errdefs.ErrInvalidArgument)
	default:
		err = checkTTL(req.TTL)
	}
	if err == nil && req.Name != "" {
		_, err = registry.ImportName(req.Name, "")
	}
	var imported []wire.Imported
	if err == nil {
		err = out.send(wire.Event{Status: wire.StatusResolving})
	}
	if err == nil {
		imported, err = h.Jobs.ImportArchive(r.Context(), req, r.Body, out.events)
	}
	if err != nil {
		_ = out.send(wire.Event{Status: wire.StatusError, Error: wire.Wrap(err)}) // the client may have disconnected
		_, _ = io.Copy(io.Discard, r.Body)
		return
	}
	_ = out.send(wire.ImportEvent{Event: wire.Event{Status: wire.StatusSuccess}, Imported: imported})
}

// mount returns what to mount.
func (h *Handler) mount(ctx context.Context, req wire.MountRequest) (m wire.Mount, err error) {
	if req.Dir != "" && (!filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir) {
		return m, fmt.Errorf("directory %q is not an absolute path in its shortest form: %w", req.Dir, errdefs.ErrInvalidArgument)
	}
	name, err := modelname.Parse(req.Name)
	if err != nil {
		return m, err
	}
	im, err := h.findShown(ctx, name)
	if errdefs.IsNotFound(err) && name.IsRef() {
		im, err = h.Jobs.Convert(ctx, name.Ref)
	}
	if err != nil {
		return m, err
	}
	return h.Mounts.Prepare(ctx, im, name.Ref, req)
}
