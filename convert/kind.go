package convert

import (
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Suffixes and prefixes of file names by kind, in lower case.
var (
	weightSuffixes = []string{".safetensors", ".gguf", ".ggml", ".bin", ".pt", ".pth", ".onnx", ".h5", ".dduf", ".msgpack", ".tflite", ".ckpt", ".npz"}
	docSuffixes    = []string{".md", ".rst", ".pdf"}
	codeSuffixes   = []string{".py", ".sh", ".go", ".rs", ".c", ".cc", ".cpp", ".h", ".js", ".ts", ".ipynb"}
	docPrefixes    = []string{"license", "licence", "copying", "notice", "readme", "use_policy", "changelog"}
)

// KindByPath returns the kind of a file by its name, for origins without kinds. The default is
// weight config, which most small files of a model are.
func KindByPath(p string) mediatype.Kind {
	name := strings.ToLower(path.Base(p))
	has := func(suffix string) bool { return strings.HasSuffix(name, suffix) }
	starts := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.ContainsFunc(weightSuffixes, has):
		return mediatype.KindWeight
	case slices.ContainsFunc(docSuffixes, has), slices.ContainsFunc(docPrefixes, starts):
		return mediatype.KindDoc
	case slices.ContainsFunc(codeSuffixes, has):
		return mediatype.KindCode
	}
	return mediatype.KindWeightConfig
}
