package admin

import (
	"context"
	"encoding/json"
	"io"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// explain adds facts from the documents of an image and its files to d. What cannot be read is left
// out.
func (h *Handler) explain(ctx context.Context, d *api.Detail, t *filetable.Table) {
	p, err := h.Store.ReadBytes(ctx, d.Config, maxConfig)
	if err != nil || !json.Valid(p) {
		return
	}
	d.ConfigJSON = p
	origin, err := convert.ParseConfig(p)
	if err != nil {
		return
	}
	var contextLength int64
	var runner convert.Runner
	if p, err := h.Store.ReadBytes(ctx, d.Manifest, convert.MaxManifestSize); err == nil {
		if m, err := convert.ParseManifest(p); err == nil {
			contextLength, runner = image.ContextLength(m.Annotations), image.RunnerOf(m.Annotations)
		}
	}
	d.Description = api.Describe(origin, contextLength, h.headers(ctx, d.Files))
	d.Description.Runner = runner
	d.Explain(t)
}

// headers reads the headers of the files that are present, which are verified objects.
func (h *Handler) headers(ctx context.Context, files []filetable.File) headers.Report {
	var list []headers.File
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Digest == "" || !headers.Has(f.Path, f.Size) || len(list) > headers.MaxFiles {
			continue
		}
		open := func(context.Context) (io.ReadCloser, error) { return h.Store.OpenObject(f.Digest) }
		r, err := open(ctx)
		if errdefs.IsNotFound(err) {
			continue // not downloaded yet
		}
		if err == nil {
			r.Close()
		}
		list = append(list, headers.File{Path: f.Path, Size: f.Size, Open: open})
	}
	return headers.Read(ctx, list)
}
