package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// A Description is what is known of a model: what its origin says, and what the headers of its
// files say where that says nothing. The config of the image has the former only: it follows
// from the origin, and the files come later.
type Description struct {
	Descriptor    convert.ModelDescriptor `json:"descriptor"`
	Config        convert.ModelConfig     `json:"config"`
	ContextLength int64                   `json:"contextLength,omitempty"` // tokens
	Runner        convert.Runner          `json:"runner,omitzero"`

	// FromHeaders are the names of the members that come from the headers of files.
	FromHeaders []string `json:"fromHeaders,omitempty"`

	// Unreadable are headers that can not be read. The files are what the origin says anyway.
	Unreadable []headers.Problem `json:"unreadable,omitempty"`
}

// Describe puts together what the origin says and what headers say.
func Describe(origin convert.Config, contextLength int64, said headers.Report) *Description {
	all := convert.MergeConfig(origin, said.Config)
	d := &Description{
		Descriptor: all.Descriptor, Config: all.Config,
		ContextLength: cmp.Or(contextLength, said.ContextLength), Unreadable: said.Problems,
	}
	before, after := members(origin, contextLength), members(all, d.ContextLength)
	for i, m := range after {
		if m.value != before[i].value {
			d.FromHeaders = append(d.FromHeaders, m.name)
		}
	}
	return d
}

// A member is a member of a description, as text.
type member struct{ name, value string }

func members(c convert.Config, contextLength int64) []member {
	d, k := c.Descriptor, c.Config
	text := func(v any) string {
		p, _ := json.Marshal(v) // lists, numbers and structs of strings, which do not fail
		return string(p)
	}
	return []member{
		{"name", d.Name}, {"family", d.Family}, {"version", d.Version}, {"vendor", d.Vendor}, {"authors", text(d.Authors)},
		{"description", d.Description}, {"docURL", d.DocURL}, {"sourceURL", d.SourceURL}, {"datasetsURL", text(d.DatasetsURL)},
		{"licenses", text(d.Licenses)}, {"architecture", k.Architecture}, {"format", k.Format}, {"paramSize", k.ParamSize},
		{"precision", k.Precision}, {"quantization", k.Quantization}, {"capabilities", text(k.Capabilities)}, {"contextLength", text(contextLength)},
	}
}

// explain adds to d what the documents of an image and its files say. What can not be read leaves d
// as it is: the image is shown without.
func (h *Handler) explain(ctx context.Context, d *Detail, t *filetable.Table) {
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
	d.Description = Describe(origin, contextLength, h.headers(ctx, d.Files))
	d.Description.Runner = runner
	d.Explain(t)
}

// Explain adds to d what became of the documents of the origin, from the config of the image and
// its table.
func (d *Detail) Explain(t *filetable.Table) {
	docs, err := image.Documents(d.ConfigJSON, t)
	if err != nil {
		return
	}
	d.Documents = &docs
	d.Losses = losses.Of(mediatype.Format(t.Origin.Format), docs)
}

// headers reads the headers of the files that are there: objects, which were verified.
func (h *Handler) headers(ctx context.Context, files []filetable.File) headers.Report {
	var list []headers.File
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Digest == "" || !headers.Has(f.Path, f.Size) || len(list) > headers.MaxFiles {
			continue
		}
		open := func(context.Context) (io.ReadCloser, error) { return h.Store.OpenObject(f.Digest) }
		r, err := open(ctx)
		if errdefs.IsNotFound(err) {
			continue // is still to come
		}
		if err == nil {
			r.Close()
		}
		list = append(list, headers.File{Path: f.Path, Size: f.Size, Open: open})
	}
	return headers.Read(ctx, list)
}

// OriginDocument returns a document of the origin of an image, byte for byte; which is "manifest",
// "config", or "child" for the manifest that was chosen from a list. It returns
// errdefs.ErrNotFound if the image does not have it, and errdefs.ErrInvalidArgument for another
// name.
func (d *Detail) OriginDocument(which string) ([]byte, error) {
	docs := d.Documents
	if docs == nil {
		docs = &convert.Documents{}
	}
	p, ok := map[string][]byte{"manifest": docs.Manifest, "config": docs.Config, "child": docs.Child}[which]
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is none of manifest, config, child: %w", which, errdefs.ErrInvalidArgument)
	case d.Documents == nil && d.Origin.Mapping > 0 && d.Origin.Mapping < convert.MappingVersion:
		return nil, fmt.Errorf("an image of mapping version %d does not have the documents of its origin; its next pull or prefetch by tag makes a new one: %w", d.Origin.Mapping, errdefs.ErrNotFound)
	case p == nil:
		return nil, fmt.Errorf("the image has no %s of the origin: %w", which, errdefs.ErrNotFound)
	}
	return p, nil
}
