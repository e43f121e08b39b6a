package admin

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ImportRequest asks for a model of an Ollama that is on this machine.
type ImportRequest struct {
	// Dir is the directory of the models as the daemon sees it, absolute. It is only read.
	Dir string `json:"dir"`

	Model string `json:"model,omitempty"` // as Ollama's users write it

	// NoPin and TTL are those of PrefetchRequest.
	NoPin bool          `json:"noPin,omitempty"`
	TTL   time.Duration `json:"ttl,omitempty"`
}

// check returns errdefs.ErrInvalidArgument for a request that can not be meant.
func (r *ImportRequest) check() error {
	switch {
	case !filepath.IsAbs(r.Dir):
		return fmt.Errorf("directory %.300q is not absolute: %w", r.Dir, errdefs.ErrInvalidArgument)
	case r.TTL < 0:
		return fmt.Errorf("ttl %v is negative: %w", r.TTL, errdefs.ErrInvalidArgument)
	}
	r.Dir = filepath.Clean(r.Dir)
	return nil
}

// LocalModel is a model of an Ollama.
type LocalModel struct {
	Name string `json:"name"` // as Ollama's users write it
	Ref  string `json:"ref"`  // by which it is pulled from its registry
}

// ImportPlan says what an import would do.
type ImportPlan struct {
	LocalModel
	Manifest digest.Digest    `json:"manifest"` // of the converted image
	Origin   filetable.Origin `json:"origin"`
	Size     int64            `json:"size"` // bytes of the blobs
	Blobs    []ImportBlob     `json:"blobs"`
}

// ImportBlob is a blob of an ImportPlan.
type ImportBlob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	File   string        `json:"file,omitempty"` // the path of a file in it

	// State is "present", store.LinkClone, store.LinkHard or store.LinkNone.
	State string `json:"state"`
}

// ImportEvent is a line of an import.
type ImportEvent struct {
	Event

	// Linked says how many bytes were taken over without a copy. It is in the last line.
	Linked *store.Linked `json:"linked,omitempty"`
}

// importModels lists the models of an Ollama.
func (h *Handler) importModels(r *http.Request) (any, error) {
	req, err := decodeImport(r)
	if err != nil {
		return nil, err
	}
	return h.ImportModels(r.Context(), req.Dir)
}

// importPlan says what an import would do.
func (h *Handler) importPlan(r *http.Request) (any, error) {
	req, err := decodeImport(r)
	if err != nil {
		return nil, err
	}
	return h.ImportPlan(r.Context(), req)
}

func decodeImport(r *http.Request) (req ImportRequest, err error) {
	if err := decodeBody(r, &req); err != nil {
		return req, err
	}
	return req, req.check()
}

// importModel imports one model.
func (h *Handler) importModel(w http.ResponseWriter, r *http.Request) {
	out := newStream(w)
	req, err := decodeImport(r)
	if err != nil {
		_ = out.send(Event{Status: StatusError, Error: Wrap(err)})
		return
	}
	im, linked, err := h.Import(r.Context(), req, out.events)
	if err != nil {
		_ = out.send(Event{Status: StatusError, Error: Wrap(err)})
		return
	}
	_ = out.send(ImportEvent{Event{Status: StatusSuccess, Image: &im}, &linked})
}

// ImportModels returns the models of the Ollama in a directory.
func (c *Client) ImportModels(ctx context.Context, dir string) (v []LocalModel, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/import/models", ImportRequest{Dir: dir}, &v)
}

// ImportPlan returns what Import would do.
func (c *Client) ImportPlan(ctx context.Context, r ImportRequest) (v ImportPlan, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/import/plan", r, &v)
}

// Import imports a model and calls event for each line but the last. If ctx ends, the daemon goes
// on; see Prefetch.
func (c *Client) Import(ctx context.Context, r ImportRequest, event func(Event)) (store.Image, store.Linked, error) {
	var last ImportEvent
	err := readStream(ctx, c, "/v1/import", r, func(e ImportEvent) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error
		case e.Image != nil && e.Linked != nil:
			last = e
			return true, nil
		}
		event(e.Event)
		return false, nil
	})
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	return *last.Image, *last.Linked, nil
}
