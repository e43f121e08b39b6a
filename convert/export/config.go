package export

import (
	"context"
	"regexp"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/store/filetable"
)

// config returns the config of the model as the specification allows it, with facts from the
// headers of its files where the origin has none.
func (j *job) config(said headers.Report) convert.Config {
	cfg := convert.MergeConfig(j.src.Model.Config, said.Config)
	cfg.Descriptor.CreatedAt = convert.RFC3339(cfg.Descriptor.CreatedAt)
	if s := cfg.Config.ParamSize; s != "" && !paramSize.MatchString(s) {
		if cfg.Config.ParamSize = convert.ParamSize(s); cfg.Config.ParamSize == "" {
			j.lose("paramSize %q, which is not a number and a unit", s)
		}
	}
	if k := cfg.Config.Capabilities; k != nil {
		clean := *k
		clean.InputTypes = j.allowed("input type", k.InputTypes, isModality)
		clean.OutputTypes = j.allowed("output type", k.OutputTypes, isModality)
		clean.Languages = j.allowed("language", k.Languages, language.MatchString)
		clean.KnowledgeCutoff = convert.RFC3339(k.KnowledgeCutoff)
		cfg.Config.Capabilities = &clean
	}
	return cfg
}

// allowed returns the elements of a list that the specification allows.
func (j *job) allowed(what string, list []string, ok func(string) bool) []string {
	var out []string
	for _, s := range list {
		if ok(s) {
			out = append(out, s)
		} else {
			j.lose("%s %q, which ModelPack does not have", what, s)
		}
	}
	return out
}

// modalities are the input and output types of the specification.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
var modalities = []string{"text", "image", "audio", "video", "embedding", "other"}

func isModality(s string) bool { return slices.Contains(modalities, s) }

// The formats of sizes and languages in the specification.
var paramSize = regexp.MustCompile(`^[0-9]+(\.[0-9])?[KMBTQkmbtq]$`)

var language = regexp.MustCompile(`^[a-z]{2}$`)

// describe returns the facts in the headers of the files of a model. A header that is missing or
// cannot be read is not an error: sending the file reports errors of the source.
func describe(ctx context.Context, files []file) headers.Report {
	var list []headers.File
	for _, f := range files {
		if f.Type == filetable.TypeReg && f.open != nil {
			list = append(list, headers.File{Path: f.Path, Size: f.Size, Open: f.open.alone, Digest: f.Digest})
		}
	}
	return headers.Read(ctx, list)
}
