package signature

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/filetable"
)

// maxConfig limits the config of an image, in bytes.
const maxConfig = 16 << 20

// harmless are the suffixes of files that run no code when they are loaded: weights, data and text.
// Archives and other containers are not among them, because they can have code in them, and neither are
// formats of Python that can: .bin, .pt, .npz, .h5, .keras.
var harmless = []string{
	".safetensors", ".gguf", ".ggml", ".mmproj", ".dduf", ".onnx", ".tflite", ".msgpack", ".parquet", ".tiktoken", ".model", ".spm", ".vocab", ".bpe",
	".json", ".jsonl", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".txt", ".md", ".rst", ".jinja", ".jinja2", ".sig", ".gitattributes", ".gitignore",
	".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".wav", ".mp3", ".flac",
}

// texts are the beginnings of names without a suffix, of documents and of files that formats make.
var texts = []string{
	"license", "licence", "copying", "notice", "readme", "use_policy", "changelog", "authors", "citation",
	"modelfile", "kitfile", "template", "system", "config", "params", "messages",
}

// code returns why a file may be code, or execute code when it is loaded, or "".
func code(files []filetable.File) string {
	for _, f := range files {
		name := strings.ToLower(path.Base(f.Path))
		ends := func(suffix string) bool { return strings.HasSuffix(name, suffix) }
		starts := func(prefix string) bool { return strings.HasPrefix(name, prefix) && !strings.Contains(name, ".") }
		switch {
		case f.Type == filetable.TypeDir:
		case f.Type == filetable.TypeReg && f.Mode&0o111 != 0:
			return fmt.Sprintf("file %.200q is a program: its mode is %o", f.Path, f.Mode)
		case !slices.ContainsFunc(harmless, ends) && !slices.ContainsFunc(texts, starts):
			return fmt.Sprintf("file %.200q may be code, or have code in it that runs when it is loaded: it is not of a known format of data or text", f.Path)
		}
	}
	return ""
}

// content returns why the content of a model violates a rule, or "".
func (c *Checker) content(r *Rule, s Subject, m model) (string, error) {
	if m.table == nil {
		return "", nil // not a model
	}
	if r.o.DenyCode {
		if why := code(m.files); why != "" {
			return why, nil
		}
	}
	if len(r.o.Licenses) == 0 {
		return "", nil
	}
	if s.Image.Config == "" {
		return "it has no licence", nil
	}
	p, err := c.Store.ReadDocument(s.Image, s.Image.Config, maxConfig)
	if err != nil {
		return "", err
	}
	config, err := convert.ParseConfig(p)
	if err != nil || len(config.Descriptor.Licenses) == 0 {
		return "it has no licence", nil
	}
	for _, l := range config.Descriptor.Licenses {
		if !slices.ContainsFunc(r.o.Licenses, func(ok string) bool { return strings.EqualFold(l, ok) }) {
			return fmt.Sprintf("licence %.100q is not allowed", l), nil
		}
	}
	return "", nil
}
