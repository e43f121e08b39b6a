package push

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// config returns the config of the model as the specification allows it, with what the headers
// of its files say where the origin says nothing.
func (c *conversion) config(said headers.Report) convert.Config {
	cfg := convert.MergeConfig(c.src.Model.Config, said.Config)
	cfg.Descriptor.CreatedAt = convert.RFC3339(cfg.Descriptor.CreatedAt)
	if s := cfg.Config.ParamSize; s != "" && !paramSize.MatchString(s) {
		if cfg.Config.ParamSize = convert.ParamSize(s); cfg.Config.ParamSize == "" {
			c.lose("paramSize %q, which is not a number and a unit", s)
		}
	}
	if k := cfg.Config.Capabilities; k != nil {
		clean := *k
		clean.InputTypes = c.allowed("input type", k.InputTypes, isModality)
		clean.OutputTypes = c.allowed("output type", k.OutputTypes, isModality)
		clean.Languages = c.allowed("language", k.Languages, language.MatchString)
		clean.KnowledgeCutoff = convert.RFC3339(k.KnowledgeCutoff)
		cfg.Config.Capabilities = &clean
	}
	if c.o.Form == FormCNAI {
		c.loseForCNAI(cfg)
	}
	return cfg
}

// allowed returns the words of a list that the specification has.
func (c *conversion) allowed(what string, list []string, ok func(string) bool) []string {
	var out []string
	for _, s := range list {
		if ok(s) {
			out = append(out, s)
		} else {
			c.lose("%s %q, which ModelPack does not have", what, s)
		}
	}
	return out
}

// modalities are the types of input and output that the specification has.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
var modalities = []string{"text", "image", "audio", "video", "embedding", "other"}

func isModality(s string) bool { return slices.Contains(modalities, s) }

var language = regexp.MustCompile(`^[a-z]{2}$`)

// describe returns what the headers of files say of a model. A file that says nothing, or that can
// not be read, is no error: whoever sends it finds that out.
func describe(ctx context.Context, files []file) headers.Report {
	var list []headers.File
	for _, f := range files {
		if f.Type == filetable.TypeReg && f.open != nil {
			list = append(list, headers.File{Path: f.Path, Size: f.Size, Open: f.open})
		}
	}
	return headers.Read(ctx, list)
}

// contextLength adds the context length to the annotations of a manifest, if it is known.
func contextLength(annotations map[string]string, n int64) {
	if n > 0 {
		annotations[mediatype.AnnotationContextLength] = strconv.FormatInt(n, 10)
	}
}

// The config of CNAI v0.0.6, which differs in the spelling of some members.
// https://github.com/modelpack/model-spec/blob/v0.0.6/specs-go/v1/config.go
type (
	cnaiConfig struct {
		Descriptor convert.ModelDescriptor `json:"descriptor"`
		ModelFS    cnaiFS                  `json:"modelfs"`
		Config     cnaiModel               `json:"config"`
	}
	cnaiFS struct {
		Type    string          `json:"type"`
		DiffIDs []digest.Digest `json:"diff_ids"`
	}
	cnaiModel struct {
		Architecture string            `json:"architecture,omitempty"`
		Format       string            `json:"format,omitempty"`
		ParamSize    string            `json:"paramSize,omitempty"`
		Precision    string            `json:"precision,omitempty"`
		Quantization string            `json:"quantization,omitempty"`
		Capabilities *cnaiCapabilities `json:"capabilities,omitempty"`
	}
	cnaiCapabilities struct {
		InputTypes      []string `json:"input_types,omitempty"`
		OutputTypes     []string `json:"output_types,omitempty"`
		KnowledgeCutoff string   `json:"knowledge_cutoff,omitempty"`
		Reasoning       *bool    `json:"reasoning,omitempty"`
		ToolUsage       *bool    `json:"tool_usage,omitempty"`
	}
)

// loseForCNAI notes what CNAI has no member for.
func (c *conversion) loseForCNAI(cfg convert.Config) {
	if len(cfg.Descriptor.DatasetsURL) > 0 {
		c.lose("datasetsURL, which %s does not have", mediatype.FormatCNAI)
	}
	if k := cfg.Config.Capabilities; k != nil && (k.Reward != nil || len(k.Languages) > 0) {
		c.lose("the languages and reward of the capabilities, which %s does not have", mediatype.FormatCNAI)
	}
}

func encodeCNAI(cfg convert.Config) []byte {
	cfg.Descriptor.DatasetsURL = nil
	m := cfg.Config
	out := cnaiConfig{
		Descriptor: cfg.Descriptor,
		ModelFS:    cnaiFS{cfg.ModelFS.Type, cfg.ModelFS.DiffIDs},
		Config:     cnaiModel{m.Architecture, m.Format, m.ParamSize, m.Precision, m.Quantization, nil},
	}
	if k := m.Capabilities; k != nil {
		out.Config.Capabilities = &cnaiCapabilities{k.InputTypes, k.OutputTypes, k.KnowledgeCutoff, k.Reasoning, k.ToolUsage}
	}
	return encode(out)
}

// encode returns the JSON of what can not fail to be encoded.
func encode(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("push: internal error: %v", err))
	}
	return p
}
