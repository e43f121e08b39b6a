package huggingface

import (
	"fmt"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Special tags; see the package documentation.
const (
	tagLatest       = "latest"
	mainBranch      = "main"
	anyQuantisation = "*"
)

// preferred is the quantisation that Ollama and llama.cpp use by default.
const preferred = "Q4_K_M"

// quantisationRE matches the quantisation in the name of a GGUF file.
// https://huggingface.co/docs/hub/gguf#quantization-types
var quantisationRE = regexp.MustCompile(`(?i)(?:UD-)?(?:I?Q[1-8](?:_[0-9A-Z]+)*|TQ[12]_0|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?)`)

// isQuantisation reports whether a tag can be a quantisation.
func isQuantisation(tag string) bool { return quantisationRE.FindString(tag) == tag && tag != "" }

// isGGUF reports whether a file is a GGUF file but not a projector, which fits any quantisation.
func isGGUF(name string) bool {
	base := strings.ToLower(path.Base(name))
	return strings.HasSuffix(base, ".gguf") && !strings.Contains(base, "mmproj")
}

// quantisationOf returns the quantisation of a GGUF file in upper case: the last one in its name,
// or in that of its directory. It is empty if there is none.
func quantisationOf(name string) string {
	for _, part := range []string{path.Base(name), path.Base(path.Dir(name))} {
		words := strings.FieldsFunc(strings.TrimSuffix(strings.ToLower(part), ".gguf"), func(r rune) bool { return r == '-' || r == '.' })
		for i, w := range slices.Backward(words) {
			if i > 0 && words[i-1] == "ud" && isQuantisation(w) {
				return strings.ToUpper("ud-" + w)
			}
			if isQuantisation(w) {
				return strings.ToUpper(w)
			}
		}
	}
	return ""
}

// otherWeights are extensions of weights that are not used beside GGUF.
var otherWeights = []string{".safetensors", ".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack", ".imatrix", ".dat"}

// choose returns the files of a quantisation; all files for "". For anyQuantisation it uses the
// preferred one, or the first, if there are several.
func choose(files []file, quantisation string) ([]file, error) {
	var have []string
	for _, f := range files {
		if q := quantisationOf(f.path); isGGUF(f.path) && q != "" && !slices.Contains(have, q) {
			have = append(have, q)
		}
	}
	want := strings.ToUpper(quantisation)
	switch {
	case quantisation == "", quantisation == anyQuantisation && len(have) < 2:
		return files, nil
	case quantisation == anyQuantisation && slices.Contains(have, preferred):
		want = preferred
	case quantisation == anyQuantisation:
		want = have[0]
	case !slices.Contains(have, want):
		return nil, &refusal{status: http.StatusNotFound, code: noRevision, message: fmt.Sprintf("it has no revision and no quantisation %s; quantisations: %s", quantisation, strings.Join(have, ", "))}
	}
	var out []file
	for _, f := range files {
		if isGGUF(f.path) && quantisationOf(f.path) != want || slices.Contains(otherWeights, strings.ToLower(path.Ext(f.path))) {
			continue
		}
		out = append(out, f)
	}
	return out, nil
}
