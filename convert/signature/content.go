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

// maxConfig is the largest config of an image that is read, in bytes.
const maxConfig = 16 << 20

// programs are suffixes of files that are programs, or that run some when they are loaded: those that
// Python unpickles among them. The sources that convert.KindByPath knows count too.
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

// content returns why what is in a model is not as a rule wants it, or "".
func (c *Checker) content(ctx context.Context, r *Rule, s Subject, m model) (string, error) {
	if m.table == nil {
		return "", nil // no model
	}
	if r.o.DenyCode {
		if p := code(m.files); p != "" {
			return fmt.Sprintf("file %.200q is code, or runs some when it is loaded", p), nil
		}
	}
	if len(r.o.Licenses) == 0 {
		return "", nil
	}
	if s.Image.Config == "" {
		return "it says no licence", nil
	}
	p, err := c.Store.ReadBytes(ctx, s.Image.Config, maxConfig)
	if err != nil {
		return "", err
	}
	config, err := convert.ParseConfig(p)
	if err != nil || len(config.Descriptor.Licenses) == 0 {
		return "it says no licence", nil
	}
	for _, l := range config.Descriptor.Licenses {
		if !slices.ContainsFunc(r.o.Licenses, func(ok string) bool { return strings.EqualFold(l, ok) }) {
			return fmt.Sprintf("licence %.100q is not one that is allowed", l), nil
		}
	}
	return "", nil
}
