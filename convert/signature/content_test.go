package signature

import (
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
)

// TestCode refuses everything that is not known to be data or text.
func TestCode(t *testing.T) {
	for _, name := range []string{
		"run", "Makefile", "setup.sh", "a.py", "a.pyc", "code.js", "x.ipynb", "model.llamafile", "libx.so.1", "x.dll", "x.wasm",
		"a.pickle.gz", "a.pkl", "a.pt", "a.pt2", "a.th", "pytorch_model.bin", "model.ckpt", "arrays.npz", "arrays.npy", "model.h5", "m.keras", "m.pb", "x.joblib",
		"weights.zip", "x.nemo", "x.mar", "x.tar", "x.whl", "x.gguf.gz",
		"LICENSE.sh", "template-run.py", "config.py", ".bashrc", "model.gguf\u200b", "data",
	} {
		for _, typ := range []string{filetable.TypeReg, filetable.TypeSymlink} {
			if code([]filetable.File{{Path: "dir.json/" + name, Type: typ, Mode: 0o644, Target: "model.gguf"}}) == "" {
				t.Errorf("%s %q is allowed", typ, name)
			}
		}
	}
	if why := code([]filetable.File{{Path: "model.gguf", Type: filetable.TypeReg, Mode: 0o744}}); why == "" {
		t.Error("a program is allowed")
	}
	if why := code([]filetable.File{{Path: "x.py", Type: filetable.TypeDir, Mode: 0o755}, {Path: "x.py/README", Type: filetable.TypeReg}, {Path: "Tokenizer.MODEL", Type: filetable.TypeReg, Mode: 0o644}, {Path: "m.json", Type: filetable.TypeSymlink, Mode: 0o777}}); why != "" {
		t.Error(why)
	}
}

// TestNoCode allows a model in every format, with the files that formats make.
func TestNoCode(t *testing.T) {
	files := slices.DeleteFunc(converttest.Files([]byte("GGUF")), func(f converttest.File) bool { return f.Path == "scripts/generate.sh" })
	for _, b := range converttest.All(files) {
		var list []filetable.File
		for name, f := range b.Files {
			list = append(list, filetable.File{Path: name, Type: filetable.TypeReg, Mode: uint32(f.Mode)})
		}
		if why := code(list); why != "" || len(list) == 0 {
			t.Errorf("%s: %d files: %s", b.Name, len(list), why)
		}
	}
}
