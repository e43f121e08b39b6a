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

// preferred are the quantisations that llama.cpp looks for if none is named. Otherwise it uses the first model.
// https://github.com/ggml-org/llama.cpp/blob/b11039/common/download.cpp
var preferred = []string{"Q4_K_M", "Q8_0"}

// maxBeside limits a file in LFS that comes with a quantisation and is not a part of it, in bytes: tokenizers have up
// to 35 MB.
const maxBeside = 64 << 20 // 64 MiB

// quantisationRE matches the name of a quantisation between characters that are neither letters nor digits.
// https://github.com/ggml-org/llama.cpp/blob/b11039/tools/quantize/README.md
var quantisationRE = regexp.MustCompile(`(?i)(?:^|[^0-9a-z])((?:UD[-_. ])?(?:` +
	`I?Q[1-8](?:_(?:[0-9]|K[A-Z]{0,2}|NL|BN|X{0,2}S|M|X{0,2}L|R[0-9]))*|` +
	`TQ[12]_0|I[1-8]_S|INT[2-8]|BF16|FP?(?:16|32)|FP[48]|(?:MX|NV)FP[468](?:_MOE)?))(?:$|[^0-9a-z])`)

// nameIn returns the last quantisation in s, in upper case; "" if there is none.
func nameIn(s string) (q string) {
	for {
		at := quantisationRE.FindStringSubmatchIndex(s)
		if at == nil {
			return q
		}
		q, s = strings.ToUpper(s[at[2]:at[3]]), s[at[3]:]
		if strings.HasPrefix(q, "UD") {
			q = "UD-" + q[3:]
		}
	}
}

// isQuantisation reports whether a tag can be a quantisation.
func isQuantisation(tag string) bool { return tag != "" && len(nameIn(tag)) == len(tag) }

// quantisationOf returns the last quantisation in the name of a file, or of the nearest directory that names one.
func quantisationOf(name string) (q string) {
	for ; q == "" && name != "." && name != "/"; name = path.Dir(name) {
		q = nameIn(path.Base(name))
	}
	return q
}

// sidecars are in the names of GGUF files that are no models: data for quantising, and drafts of a model.
var sidecars = []string{"mtp-", "eagle3-", "dflash-", "dspark-"}

// isProjector reports whether a file is a projector, which fits any quantisation.
func isProjector(name string) bool {
	base := strings.ToLower(path.Base(name))
	return strings.HasSuffix(base, ".gguf") && strings.Contains(base, "mmproj")
}

// isModel reports whether a file is a model in GGUF, or one of its shards.
func isModel(name string) bool {
	base := path.Base(name)
	lower := strings.ToLower(base)
	return strings.HasSuffix(lower, ".gguf") && !isProjector(name) && !strings.Contains(lower, "imatrix") &&
		!slices.ContainsFunc(sidecars, func(s string) bool { return strings.Contains(base, s) })
}

// pieceRE matches a piece of a GGUF file that was cut, which nothing reads before the pieces are one file again.
var pieceRE = regexp.MustCompile(`(?i)\.gguf[-._]?(?:split|part|[0-9])`)

// otherWeights are extensions of weights, and of archives, that are not used beside GGUF.
var otherWeights = strings.Fields(`.gguf .gguf_file .safetensors .bin .pt .pth .onnx .onnx_data .h5 .keras .msgpack .imatrix .dat .ckpt .pkl .npz
	.npy .ggml .llamafile .nemo .tflite .ot .gz .tgz .tar .zip .7z .xz .zst`)

// isBeside reports whether a file comes with every quantisation.
func isBeside(f file) bool {
	base := strings.ToLower(path.Base(f.path))
	return (f.digest == "" || f.size <= maxBeside) && !slices.Contains(otherWeights, path.Ext(base)) && !pieceRE.MatchString(base) && !strings.Contains(base, "imatrix")
}

// choose returns the files of a quantisation; all files for "". For anyQuantisation it uses a preferred one, or the
// first, if there are several.
func choose(files []file, quantisation string) ([]file, error) {
	var have, all []string          // quantisations of models, and also of pieces
	pieces := map[string][]string{} // by quantisation
	for _, f := range files {
		q := quantisationOf(f.path)
		model, piece := isModel(f.path), pieceRE.MatchString(f.path)
		if q == "" || !model && !piece {
			continue
		}
		if model && !slices.Contains(have, q) {
			have = append(have, q)
		}
		if piece {
			pieces[q] = append(pieces[q], f.path)
		}
		if !slices.Contains(all, q) {
			all = append(all, q)
		}
	}
	wanted := []string{nameIn(quantisation)}
	if quantisation == anyQuantisation {
		wanted = append(slices.Clone(preferred), append(have, "")[0])
	}
	if quantisation == "" || quantisation == anyQuantisation && (len(have) == 0 || len(all) < 2) {
		return files, nil
	}
	want := ""
	for _, w := range wanted {
		for _, w := range []string{w, "UD-" + w} {
			if want == "" && slices.Contains(have, w) {
				want = w
			}
		}
	}
	if want == "" {
		return nil, noQuantisation(quantisation, have, pieces[wanted[0]])
	}
	return slices.DeleteFunc(slices.Clone(files), func(f file) bool {
		switch q := quantisationOf(f.path); {
		case isModel(f.path):
			return q != want
		case isProjector(f.path):
			return false
		default:
			return q != "" && q != want || !isBeside(f)
		}
	}), nil
}

// noQuantisation returns the error for a quantisation of which there are no models, but perhaps pieces.
func noQuantisation(quantisation string, have, pieces []string) error {
	text := fmt.Sprintf("it has no revision and no quantisation %s", quantisation)
	if len(pieces) > 0 {
		text = fmt.Sprintf("it has %s in pieces only, which must be one file to be read: %s", quantisation, pieces[0])
		if n := len(pieces) - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
	}
	return &refusal{status: http.StatusNotFound, code: noRevision, message: text + "; quantisations: " + strings.Join(have, ", ")}
}
