package signature

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
)

// maxConfig limits the config of an image, in bytes.
const maxConfig = 16 << 20

// programs are suffixes of files that are programs, or execute code when they are loaded, such as
// files that Python unpickles. Sources, known by convert.KindByPath, also count.
var programs = []string{
	".pyc", ".pyd", ".so", ".dll", ".dylib", ".exe", ".bat", ".cmd", ".ps1", ".mjs", ".wasm", ".jar", ".class", ".lua", ".rb", ".pl", ".cu",
	".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".h5", ".keras", ".mar",
}

// code returns the path of the first file that is code, or "".
func code(files []filetable.File) string {
	for _, f := range files {
		name := strings.ToLower(path.Base(f.Path))
		if f.Type != filetable.TypeDir && (convert.KindByPath(name) == mediatype.KindCode ||
			slices.ContainsFunc(programs, func(s string) bool { return strings.HasSuffix(name, s) })) {
			return f.Path
		}
	}
	return ""
}

// content returns why the content of a model violates a rule, or "".
func (c *Checker) content(ctx context.Context, r *Rule, s Subject, m model) (string, error) {
	if m.table == nil {
		return "", nil // not a model
	}
	if r.o.DenyCode {
		if p := code(m.files); p != "" {
			return fmt.Sprintf("file %.200q is code, or executes code when it is loaded", p), nil
		}
	}
	if len(r.o.Licenses) == 0 {
		return "", nil
	}
	if s.Image.Config == "" {
		return "it has no licence", nil
	}
	p, err := c.Store.ReadBytes(ctx, s.Image.Config, maxConfig)
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
