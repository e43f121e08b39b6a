package translate

import (
	"cmp"
	"encoding/json"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/store/filetable"
)

// Describe combines the facts of the origin with those of the headers.
func Describe(origin convert.Config, contextLength int64, runner convert.Runner, said headers.Report) *wire.Description {
	all := convert.MergeConfig(origin, said.Config)
	k := all.Config
	d := &wire.Description{
		Descriptor: wire.ModelDescriptor(all.Descriptor),
		Config: wire.ModelConfig{
			Architecture: k.Architecture, Format: k.Format, ParamSize: k.ParamSize, Precision: k.Precision, Quantization: k.Quantization,
			Capabilities: (*wire.Capabilities)(k.Capabilities),
		},
		ContextLength: cmp.Or(contextLength, said.ContextLength), Runner: wire.Runner(runner),
		Unreadable: list(said.Problems, func(p headers.Problem) wire.HeaderProblem { return wire.HeaderProblem(p) }),
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
func Explain(d *wire.Detail, t *filetable.Table) {
	docs, err := image.Documents(d.ConfigJSON, t)
	if err != nil {
		return
	}
	d.Documents = &wire.Documents{Manifest: docs.Manifest, Child: docs.Child, Config: docs.Config}
	lost := losses.Of(formats.All().Get(t.Origin.Format).Losses, docs)
	d.Losses = list(lost, func(l losses.Loss) wire.Loss { return wire.Loss(l) })
}
