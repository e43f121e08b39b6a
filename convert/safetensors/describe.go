package safetensors

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/errdefs"
)

// A ModelConfig has the facts of the config.json beside the files of a model. The zero value has
// none.
// https://huggingface.co/docs/transformers/v4.57.1/en/main_classes/configuration
type ModelConfig struct {
	Architecture  string // the first of architectures, such as "LlamaForCausalLM"
	Family        string // model_type, such as "llama"
	Quantization  string // such as "awq"
	Bits          uint64 // of a quantised element
	ContextLength uint64 // in tokens
}

// ParseConfig parses a config.json. It returns errdefs.ErrInvalidArgument for one that is not a
// JSON object or has more than convert.MaxConfigSize bytes. Members of another type than expected
// are left out.
func ParseConfig(p []byte) (ModelConfig, error) {
	if len(p) > convert.MaxConfigSize {
		return ModelConfig{}, fmt.Errorf("config.json of %d bytes: %w", len(p), errdefs.ErrInvalidArgument)
	}
	o, err := convert.ParseObject(p)
	if err != nil {
		return ModelConfig{}, fmt.Errorf("config.json: %w", err)
	}
	c := ModelConfig{Family: word(o.String("model_type"))}
	if list := o.Strings("architectures"); len(list) > 0 {
		c.Architecture = word(list[0])
	}
	for _, in := range []*convert.Object{o, o.Object("text_config")} { // the text part of a vision model
		n := int64(0)
		for _, k := range []string{"max_position_embeddings", "n_positions", "max_seq_len", "seq_length"} {
			if v, ok := in.Int(k); ok && n == 0 {
				n = v
			}
		}
		c.ContextLength = cmp.Or(c.ContextLength, uint64(max(n, 0)))
	}
	for _, k := range []string{"quantization_config", "quantization"} { // the latter is that of MLX
		q := o.Object(k)
		bits, ok := q.Int("bits")
		if !ok {
			bits, _ = q.Object("config_groups").Object("group_0").Object("weights").Int("num_bits")
		}
		if bits > 0 && bits <= 16 {
			c.Bits = cmp.Or(c.Bits, uint64(bits))
		}
		c.Quantization = cmp.Or(c.Quantization, word(q.String("quant_method")))
	}
	return c, nil
}

var wordText = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._/-]{0,127}$`)

// word returns s if it is a name, otherwise "".
func word(s string) string {
	if !wordText.MatchString(s) {
		return ""
	}
	return s
}

// precisions are ModelPack's names of dtypes.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
var precisions = map[string]string{
	"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
	"F8_E4M3": "float8_e4m3", "F8_E5M2": "float8_e5m2",
	"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
	"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
	"BOOL": "bool", "C64": "complex64",
}

// Describe returns the facts about a model from its files and its config, in ModelPack's terms. The
// files are those that a loader reads together, without duplicates.
func Describe(files []Summary, c ModelConfig) convert.Config {
	if len(files) == 0 {
		return convert.Config{}
	}
	quantization := c.Quantization
	for _, s := range files {
		quantization = cmp.Or(quantization, s.Quantization)
	}
	return convert.Config{
		Descriptor: convert.ModelDescriptor{Family: c.Family},
		Config: convert.ModelConfig{
			Architecture: cmp.Or(c.Architecture, c.Family),
			Format:       "safetensors",
			ParamSize:    convert.ParamCount(parameters(files, c.Bits)),
			Precision:    precision(files),
			Quantization: quantization,
		},
	}
}

// parameters returns the number of parameters of all files, zero if unknown.
func parameters(files []Summary, bits uint64) uint64 {
	var sum uint64
	for _, s := range files {
		if s.Parameters == 0 && s.PackedBits == 0 && s.Bytes > 0 || s.PackedBits > 0 && bits == 0 {
			return 0
		}
		n := s.Parameters
		if s.PackedBits > 0 {
			n += s.PackedBits / bits
		}
		if n < s.Parameters || sum+n < sum {
			return 0
		}
		sum += n
	}
	return sum
}

// precision returns the names of the dtypes, those with most bytes first, without those of less
// than a hundredth of the bytes.
func precision(files []Summary) string {
	var all uint64
	sizes := map[string]uint64{}
	for _, s := range files {
		all += s.Bytes
		for _, d := range s.DTypes {
			sizes[d.Name] += d.Bytes
		}
	}
	var names []string
	for _, d := range sorted(sizes) {
		if name := precisions[d.Name]; name != "" && d.Bytes > 0 && d.Bytes >= all/100 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
