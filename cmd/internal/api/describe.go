package api

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// A Description describes a model by the facts of its origin and, where the origin has none, by
// those of the headers of its files. The config of the image has only the former: it is derived
// from the origin, before any file is downloaded.
type Description struct {
	Descriptor    convert.ModelDescriptor `json:"descriptor"`
	Config        convert.ModelConfig     `json:"config"`
	ContextLength int64                   `json:"contextLength,omitempty"` // tokens
	Runner        convert.Runner          `json:"runner,omitzero"`

	// FromHeaders are the names of the members taken from the headers of files.
	FromHeaders []string `json:"fromHeaders,omitempty"`

	// Unreadable are headers that cannot be read. The description then relies on the origin.
	Unreadable []headers.Problem `json:"unreadable,omitempty"`
}

// Describe combines the facts of the origin with those of the headers.
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
		p, _ := json.Marshal(v) // lists, numbers and structs of strings, which cannot fail
		return string(p)
	}
	return []member{
		{"name", d.Name}, {"family", d.Family}, {"version", d.Version}, {"vendor", d.Vendor}, {"authors", text(d.Authors)},
		{"description", d.Description}, {"docURL", d.DocURL}, {"sourceURL", d.SourceURL}, {"datasetsURL", text(d.DatasetsURL)},
		{"licenses", text(d.Licenses)}, {"architecture", k.Architecture}, {"format", k.Format}, {"paramSize", k.ParamSize},
		{"precision", k.Precision}, {"quantization", k.Quantization}, {"capabilities", text(k.Capabilities)}, {"contextLength", text(contextLength)},
	}
}

// Explain adds to d, from the config of the image and its table, what became of the documents of
// the origin.
func (d *Detail) Explain(t *filetable.Table) {
	docs, err := image.Documents(d.ConfigJSON, t)
	if err != nil {
		return
	}
	d.Documents = &docs
	d.Losses = losses.Of(formats.All().Get(t.Origin.Format).Losses, docs)
}

// OriginDocument returns a document of the origin of an image, byte for byte. which is "manifest",
// "config", or "child" for the manifest chosen from an index. It returns errdefs.ErrNotFound if the
// image does not have it, and errdefs.ErrInvalidArgument for another name.
func (d *Detail) OriginDocument(which string) ([]byte, error) {
	docs := d.Documents
	if docs == nil {
		docs = &convert.Documents{}
	}
	p, ok := map[string][]byte{"manifest": docs.Manifest, "config": docs.Config, "child": docs.Child}[which]
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not one of manifest, config, child: %w", which, errdefs.ErrInvalidArgument)
	case p == nil:
		return nil, fmt.Errorf("the image has no %s of the origin: %w", which, errdefs.ErrNotFound)
	}
	return p, nil
}
