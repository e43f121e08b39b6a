package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Config is the ModelPack config of a model: its metadata. It is written in the current spelling,
// whatever spelling it was read in.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
type Config struct {
	Descriptor ModelDescriptor `json:"descriptor"`
	ModelFS    ModelFS         `json:"modelfs"`
	Config     ModelConfig     `json:"config"`
}

// ModelDescriptor describes the provenance of a model.
type ModelDescriptor struct {
	CreatedAt   string   `json:"createdAt,omitempty"` // RFC 3339
	Authors     []string `json:"authors,omitempty"`
	Vendor      string   `json:"vendor,omitempty"`
	Family      string   `json:"family,omitempty"`
	Name        string   `json:"name,omitempty"`
	Version     string   `json:"version,omitempty"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	DocURL      string   `json:"docURL,omitempty"`
	SourceURL   string   `json:"sourceURL,omitempty"`
	DatasetsURL []string `json:"datasetsURL,omitempty"`
	Revision    string   `json:"revision,omitempty"`
	Licenses    []string `json:"licenses,omitempty"` // SPDX expressions
}

// ModelFS lists the layers of a model by their diffIDs.
type ModelFS struct {
	Type    string          `json:"type"` // "layers"
	DiffIDs []digest.Digest `json:"diffIds"`
}

// ModelConfig describes the model itself.
type ModelConfig struct {
	Architecture string        `json:"architecture,omitempty"`
	Format       string        `json:"format,omitempty"`
	ParamSize    string        `json:"paramSize,omitempty"` // such as "6.7B"
	Precision    string        `json:"precision,omitempty"`
	Quantization string        `json:"quantization,omitempty"`
	Capabilities *Capabilities `json:"capabilities,omitempty"`
}

// Capabilities describe the abilities of a model.
type Capabilities struct {
	InputTypes      []string `json:"inputTypes,omitempty"`
	OutputTypes     []string `json:"outputTypes,omitempty"`
	KnowledgeCutoff string   `json:"knowledgeCutoff,omitempty"` // RFC 3339
	Reasoning       *bool    `json:"reasoning,omitempty"`
	ToolUsage       *bool    `json:"toolUsage,omitempty"`
	Reward          *bool    `json:"reward,omitempty"`
	Languages       []string `json:"languages,omitempty"`
}

// ParseConfig parses a ModelPack or CNAI config of any generation. Metadata of an unexpected type
// is ignored; an invalid diffID is an error.
func ParseConfig(p []byte) (Config, error) {
	o, err := ParseObject(p)
	if err != nil {
		return Config{}, fmt.Errorf("config: %w", err)
	}
	ids, err := ParseDiffIDs(p, "modelfs")
	if err != nil {
		return Config{}, err
	}
	d := o.Object("descriptor")
	cfg := Config{
		Descriptor: ModelDescriptor{
			CreatedAt:   RFC3339(d.String("createdAt", "createTime")),
			Authors:     d.Strings("authors"),
			Vendor:      d.String("vendor"),
			Family:      d.String("family"),
			Name:        d.String("name"),
			Version:     d.String("version"),
			Title:       d.String("title"),
			Description: d.String("description"),
			DocURL:      d.String("docURL", "infoURL"),
			SourceURL:   d.String("sourceURL"),
			DatasetsURL: d.Strings("datasetsURL"),
			Revision:    d.String("revision"),
			Licenses:    d.Strings("licenses"),
		},
		ModelFS: ModelFS{Type: "layers", DiffIDs: ids},
		Config:  parseModelConfig(o.Object("config")),
	}
	return cfg, nil
}

func parseModelConfig(o *Object) ModelConfig {
	c := ModelConfig{
		Architecture: o.String("architecture"),
		Format:       o.String("format"),
		ParamSize:    o.String("paramSize", "parameterSize"),
		Precision:    o.String("precision"),
		Quantization: o.String("quantization", "puantization"), // misspelt in v0.0.1 to v0.0.3
	}
	if c.ParamSize == "" {
		c.ParamSize = countParams(o.Number("parameterSize"))
	}
	if !o.Has("capabilities") {
		return c
	}
	k := o.Object("capabilities")
	c.Capabilities = &Capabilities{
		InputTypes:      k.Strings("inputTypes", "input_types"),
		OutputTypes:     k.Strings("outputTypes", "output_types"),
		KnowledgeCutoff: RFC3339(k.String("knowledgeCutoff", "knowledge_cutoff")),
		Reasoning:       optional(k.Bool("reasoning")),
		ToolUsage:       optional(k.Bool("toolUsage", "tool_usage")),
		Reward:          optional(k.Bool("reward")),
		Languages:       k.Strings("languages"),
	}
	if v, _ := k.Bool("embedding"); v && !slices.Contains(c.Capabilities.OutputTypes, "embedding") {
		c.Capabilities.OutputTypes = append(c.Capabilities.OutputTypes, "embedding")
	}
	return c
}

func optional(v, ok bool) *bool {
	if !ok {
		return nil
	}
	return &v
}

// ParseDiffIDs returns the diffIDs in the member "modelfs" or "rootfs" of a config, nil if there
// are none.
func ParseDiffIDs(p []byte, member string) ([]digest.Digest, error) {
	o, err := ParseObject(p)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	list := o.Object(member).Strings("diffIds", "diff_ids")
	if err := o.Err(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	var ids []digest.Digest
	for i, s := range list {
		d, err := verify.ParseDigest(s)
		if err != nil {
			return nil, fmt.Errorf("config: diffID %d: %w", i, err)
		}
		ids = append(ids, d)
	}
	return ids, nil
}

// CheckDiffIDs returns errdefs.ErrInvalidArgument unless a config lists one diffID for each layer,
// or none.
func CheckDiffIDs(ids []digest.Digest, layers int) error {
	if len(ids) != 0 && len(ids) != layers {
		return fmt.Errorf("config lists %d diffIDs for %d layers: %w", len(ids), layers, errdefs.ErrInvalidArgument)
	}
	return nil
}

// RFC3339 returns s if it is a time in RFC 3339, otherwise "".
func RFC3339(s string) string {
	if _, err := time.Parse(time.RFC3339, s); err != nil {
		return ""
	}
	return s
}

var paramText = regexp.MustCompile(`^([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMBTQkmbtq])$`)

// ParamSize converts a number of parameters in text, such as "361.82M" or "1.10 B", to the form of
// ModelPack: at most one decimal and a unit. It returns "" for other text.
func ParamSize(s string) string {
	m := paramText.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return ""
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") + strings.ToUpper(m[2])
}

// countParams converts a number of parameters, a JSON number, to the form of ModelPack.
func countParams(number string) string {
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return ""
	}
	for _, u := range []struct {
		unit string
		size float64
	}{{"Q", 1e15}, {"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"K", 1e3}} {
		if n >= u.size {
			return ParamSize(strconv.FormatFloat(n/u.size, 'f', 1, 64) + u.unit)
		}
	}
	return ""
}

// ParseImageConfig parses the config of an image that containerd reads too, as an OCI image config. It returns
// errdefs.ErrInvalidArgument if encoding/json reads another document in it.
func ParseImageConfig(p []byte) (*Object, error) {
	o, err := parseObject(p, configKeys)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return o, nil
}
