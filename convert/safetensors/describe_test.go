package safetensors

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// header returns a header of tensors whose sizes are computed from their shapes.
func header(metadata map[string]string, tensors ...Tensor) *Header {
	h := &Header{Metadata: metadata, Tensors: tensors}
	for i := range h.Tensors {
		x := &h.Tensors[i]
		n, _ := convert.Elements(x.Shape)
		x.Size = int64(n * dtypes[x.DType] / 8)
		x.Offset = h.DataSize
		h.DataSize += x.Size
	}
	return h
}

func tensor(name, dtype string, shape ...uint64) Tensor {
	return Tensor{Name: name, DType: dtype, Shape: shape}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	const m = 1_000_000
	plain := header(nil, tensor("a", "BF16", 5, m), tensor("b", "F32", 1, m), tensor("c", "F64", 100))
	for _, tt := range []struct {
		name   string
		config ModelConfig
		files  []*Header
		want   convert.ModelConfig
	}{
		{"plain", ModelConfig{}, []*Header{plain}, convert.ModelConfig{Format: "safetensors", ParamSize: "6M", Precision: "bfloat16,float32"}},
		{"in two files, with a config", ModelConfig{Architecture: "LlamaForCausalLM", Family: "llama"}, []*Header{plain, plain},
			convert.ModelConfig{Architecture: "LlamaForCausalLM", Format: "safetensors", ParamSize: "12M", Precision: "bfloat16,float32"}},
		{"a config without architectures", ModelConfig{Family: "llama"}, []*Header{plain},
			convert.ModelConfig{Architecture: "llama", Format: "safetensors", ParamSize: "6M", Precision: "bfloat16,float32"}},
		{"nvfp4 of Ollama", ModelConfig{}, []*Header{header(map[string]string{"quant_type": "nvfp4"},
			tensor("w", "U32", 10, m), tensor("w.scale", "U8", 5, m), tensor("w.global_scale", "F32", 1), tensor("w2", "U32", 3, m), tensor("norm", "BF16", 1, m))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "84M", Precision: "uint32,bfloat16", Quantization: "nvfp4"}},
		{"two kinds in one file of Ollama", ModelConfig{}, []*Header{header(map[string]string{"w.quant_type": "int8", "v.quant_type": "int4"},
			tensor("w", "U32", 10, m), tensor("w.scale", "BF16", 5), tensor("v", "U32", 10, m), tensor("v.scale", "BF16", 5), tensor("v.bias", "BF16", 5))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "120M"}},
		{"MLX of four bits", ModelConfig{Bits: 4}, []*Header{header(nil, tensor("q.weight", "U32", 2, m), tensor("q.scales", "BF16", m), tensor("q.biases", "BF16", m))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "16M"}},
		{"MLX of bits that are not known", ModelConfig{}, []*Header{header(nil, tensor("q.weight", "U32", 2, m), tensor("q.scales", "BF16", m))},
			convert.ModelConfig{Format: "safetensors"}},
		{"GPTQ of four bits", ModelConfig{Bits: 4, Quantization: "gptq"}, []*Header{header(nil,
			tensor("q.qweight", "I32", 2, m), tensor("q.scales", "F16", m), tensor("q.qzeros", "I32", m), tensor("q.g_idx", "I32", m), tensor("lm_head.weight", "F16", 4, m))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "20M", Precision: "float16", Quantization: "gptq"}},
		{"compressed tensors", ModelConfig{Bits: 8}, []*Header{header(nil, tensor("q.weight_packed", "I32", m), tensor("q.weight_scale", "BF16", m), tensor("q.weight_shape", "I64", 2))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "4M"}},
		{"MXFP4 of Transformers", ModelConfig{Quantization: "mxfp4"}, []*Header{header(nil, tensor("mlp.down_proj_blocks", "U8", m), tensor("mlp.down_proj_scales", "U8", m))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "2M", Quantization: "mxfp4"}},
		{"bitsandbytes", ModelConfig{}, []*Header{header(nil, tensor("q.weight", "U8", m, 1), tensor("q.weight.absmax", "F32", m), tensor("q.weight.quant_map", "F32", 16), tensor("q.weight.quant_state.bitsandbytes__nf4", "U8", 80))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "2M"}},
		{"FP8", ModelConfig{Quantization: "fp8"}, []*Header{header(nil, tensor("q.weight", "F8_E4M3", 200, m), tensor("q.weight_scale_inv", "F32", 1000))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "200M", Precision: "float8_e4m3", Quantization: "fp8"}},
		{"a quant_type that is not known", ModelConfig{}, []*Header{header(map[string]string{"quant_type": "q0"}, tensor("w", "U32", m), tensor("w.scale", "U8", m))},
			convert.ModelConfig{Format: "safetensors", Quantization: "q0"}},
		{"a quant_type that is no name", ModelConfig{}, []*Header{header(map[string]string{"quant_type": "<script>"}, tensor("w", "I8", m))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "1M", Precision: "int8"}},
		{"a dtype that is not known", ModelConfig{}, []*Header{{Tensors: []Tensor{{Name: "w", DType: "Q3", Shape: []uint64{m}, Size: 9}}, DataSize: 9}},
			convert.ModelConfig{Format: "safetensors", ParamSize: "1M"}},
		{"a shape that overflows", ModelConfig{}, []*Header{{Tensors: []Tensor{{Name: "w", DType: "Q3", Shape: []uint64{1 << 63, 2}, Size: 9}}, DataSize: 9}},
			convert.ModelConfig{Format: "safetensors"}},
		{"a sum that overflows", ModelConfig{}, slices.Repeat([]*Header{{Tensors: []Tensor{{Name: "w", DType: "Q3", Shape: []uint64{1 << 63}, Size: 9}}, DataSize: 9}}, 2),
			convert.ModelConfig{Format: "safetensors"}},
		{"no tensors", ModelConfig{}, []*Header{{}}, convert.ModelConfig{Format: "safetensors"}},
		{"no files", ModelConfig{Architecture: "x"}, nil, convert.ModelConfig{}},
	} {
		var files []Summary
		for _, h := range tt.files {
			files = append(files, h.Summary())
		}
		got := Describe(files, tt.config)
		if diff := cmp.Diff(tt.want, got.Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if len(files) > 0 && got.Descriptor.Family != tt.config.Family {
			t.Errorf("%s: got family %q, want %q", tt.name, got.Descriptor.Family, tt.config.Family)
		}
	}
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want ModelConfig
	}{
		{`{}`, ModelConfig{}},
		{`{"architectures":["LlamaForCausalLM"],"model_type":"llama","max_position_embeddings":131072,"torch_dtype":"bfloat16"}`,
			ModelConfig{Architecture: "LlamaForCausalLM", Family: "llama", ContextLength: 131072}},
		{`{"model_type":"gemma3","text_config":{"max_position_embeddings":8192}}`, ModelConfig{Family: "gemma3", ContextLength: 8192}},
		{`{"model_type":"gpt2","n_positions":1024}`, ModelConfig{Family: "gpt2", ContextLength: 1024}},
		{`{"quantization_config":{"quant_method":"awq","bits":4}}`, ModelConfig{Quantization: "awq", Bits: 4}},
		{`{"quantization":{"group_size":64,"bits":6}}`, ModelConfig{Bits: 6}},
		{`{"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":8}}}}}`,
			ModelConfig{Quantization: "compressed-tensors", Bits: 8}},
		{`{"architectures":"x","model_type":7,"max_position_embeddings":"many","quantization_config":[4]}`, ModelConfig{}},
		{`{"architectures":["<b>"],"model_type":"a\nb","max_position_embeddings":-1,"quantization_config":{"bits":-4,"quant_method":""}}`, ModelConfig{}},
	} {
		got, err := ParseConfig([]byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
	for _, text := range []string{"", "[]", "{", `{"a":1,"a":2}`, `{"x":"` + strings.Repeat("x", convert.MaxConfigSize) + `"}`} {
		if _, err := ParseConfig([]byte(text)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.20s: got %v, want %v", text, err, errdefs.ErrInvalidArgument)
		}
	}
}
