package huggingface

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestQuantisationOf reads the ways in which repositories write quantisations.
func TestQuantisationOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		// docker/model-runner#439, llama.cpp#11195, ollama#7268, ollama#7365
		"m-Q4_K_M.gguf": "Q4_K_M", "m.q4_k_m.gguf": "Q4_K_M", "m_Q5_K_S.gguf": "Q5_K_S", "m Q5_K_M.gguf": "Q5_K_M", "m (Q4_K_M).gguf": "Q4_K_M",
		"Q8_0.gguf": "Q8_0", "m[IQ4_NL]x.gguf": "IQ4_NL", "m+IQ2_XXS.gguf": "IQ2_XXS", "m.i1-IQ3_M.gguf": "IQ3_M", "m-Q4_K_M_v2.gguf": "Q4_K_M",
		"m-UD-Q4_K_XL-00001-of-00002.gguf": "UD-Q4_K_XL", "m_UD_IQ1_S.gguf": "UD-IQ1_S", "UD-Q2_K_XL/m-00001-of-00003.gguf": "UD-Q2_K_XL",
		"m-NVFP4.gguf": "NVFP4", "m-mxfp4_moe.gguf": "MXFP4_MOE", "m-MXFP4.gguf": "MXFP4", "ggml-model-i2_s.gguf": "I2_S", "m-int4.gguf": "INT4",
		"m-fp8.gguf": "FP8", "m-TQ1_0.gguf": "TQ1_0", "m-Q4_0_4_4.gguf": "Q4_0_4_4", "m-IQ4_KSS.gguf": "IQ4_KSS", "m-BF16.gguf": "BF16", "m.fp16.gguf": "FP16",
		"Qwen3-4B-FP8-Q6_K.gguf": "Q6_K", "gguf/Q4_1/deep/m.gguf": "Q4_1", "Q4_0/m-Q5_0.gguf": "Q5_0", "m.Q6_K.gguf-split-a": "Q6_K",
		"mQ4_K_M.gguf": "", "m-Q4_K_MX.gguf": "Q4_K", "m-IQ9.gguf": "", "m.gguf": "", "q/README.md": "", "bf160.gguf": "",
	} {
		if got := quantisationOf(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for tag, want := range map[string]bool{"q4_k_m": true, "UD-Q4_K_XL": true, "F16": true, "main": false, "v1-Q4_0": false, "Q4_0-Q8_0": false, "": false} {
		if isQuantisation(tag) != want {
			t.Errorf("tag %q is a quantisation: %v", tag, !want)
		}
	}
}

// TestChoose chooses the files of a quantisation, and nothing large that is not of it.
func TestChoose(t *testing.T) {
	t.Parallel()
	pieces := "README.md config.json m.Q4_K_M.gguf m.Q6_K.gguf-split-a m.Q6_K.gguf-split-b m.Q8_0.gguf.part1of2 m.Q8_0.gguf.part2of2 m.Q4_K_M.gguf.part1of1"
	weights := "m-Q4_K_M.gguf m-Q8_0.gguf onnx/model.onnx_data model.ckpt m.llamafile m.tar.gz m.zip model.nemo weights.npz model.tflite m.ggml rust_model.ot m.pkl " +
		"imatrix.gguf_file imatrix.dat imatrix-Q4_K_M.gguf mtp-m-Q4_K_M.gguf m-eagle3-Q4_K_M.gguf config-Q8_0.json fp16/config.json logo.png large:video.mp4 tokenizer.json"
	const unsloth = "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf m-Q8_0.gguf m-UD-IQ1_S.gguf mmproj-F16.gguf"
	for _, tt := range []struct{ files, tag, want string }{
		// oobabooga/textgen#6187, TabbyML/tabby#1318
		{pieces, "Q4_K_M", "README.md config.json m.Q4_K_M.gguf"},
		{pieces, anyQuantisation, "README.md config.json m.Q4_K_M.gguf"},
		{pieces, "q6_k", "it has q6_k in pieces only, which must be one file to be read: m.Q6_K.gguf-split-a and 1 more; quantisations: Q4_K_M"},
		{pieces, "Q2_K", "it has no revision and no quantisation Q2_K; quantisations: Q4_K_M"},
		{weights, "Q4_K_M", "m-Q4_K_M.gguf logo.png tokenizer.json"},
		{unsloth, anyQuantisation, "m-Q8_0.gguf mmproj-F16.gguf"},
		{"m-IQ2_M.gguf m-IQ1_S.gguf", anyQuantisation, "m-IQ2_M.gguf"},
		{"imatrix-IQ1_M.gguf mtp-m-IQ1_S.gguf eagle3-m-IQ1_S.gguf mmproj-F16.gguf m-IQ3_S.gguf m-IQ2_S.gguf", anyQuantisation, "mmproj-F16.gguf m-IQ3_S.gguf"},
		{"m-UD-Q4_K_M.gguf m-Q8_0.gguf", anyQuantisation, "m-UD-Q4_K_M.gguf"},
		{"m-UD-Q4_K_M.gguf m-Q8_0.gguf", "q4_k_m", "m-UD-Q4_K_M.gguf"},
		{"m.gguf x.bin", anyQuantisation, "m.gguf x.bin"},
		{"m.Q6_K.gguf-split-a m.Q5_K.gguf-split-a", anyQuantisation, "m.Q6_K.gguf-split-a m.Q5_K.gguf-split-a"},
		{"m-Q4_0.gguf m-Q8_0.gguf", "", "m-Q4_0.gguf m-Q8_0.gguf"},
	} {
		var files []file
		for _, name := range strings.Fields(tt.files) {
			name, large := strings.CutPrefix(name, "large:")
			f := file{path: name, size: 1 << 10, digest: digest.FromString(name)}
			if large {
				f.size = maxBeside + 1
			}
			files = append(files, f)
		}
		chosen, err := choose(files, tt.tag)
		var names []string
		for _, f := range chosen {
			names = append(names, f.path)
		}
		if diff := cmp.Diff(tt.want, strings.TrimSuffix(strings.Join(append(names, fmt.Sprint(err)), " "), " <nil>")); diff != "" {
			t.Errorf("%q of %s (-want +got):\n%s", tt.tag, tt.files, diff)
		}
	}
}
