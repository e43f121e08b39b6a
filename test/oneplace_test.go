package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// onePlaceRules list what may be written only in the named folders or files. Tests are exempt.
var onePlaceRules = []struct {
	name string
	only []string // folders, not those below them, or files
	find func(ast.Node) bool
}{
	{"media types are spelled once", []string{"convert/mediatype", "store/filetable/mediatype.go"}, literal("application/vnd.")},
	{"annotation keys are spelled once", []string{"convert/mediatype"}, literal("org.cncf.model.", "org.cnai.model.", "org.cnai.")},
	{"digests are compared in one package", []string{"store/verify"}, comparesDigest},
	{"the environment is read with the configuration", []string{"cmd/internal/contract/config"}, calls("os", "Getenv", "LookupEnv", "Environ")},
	{"formats are named in their folders", []string{"convert/mediatype", "convert/ollama", "convert/ollama/localstore", "convert/carton", "convert/huggingface",
		"cmd/internal/contract/config" /* keys that people write */, "convert/hostname/hostname.go" /* a registry has one name */}, is("carton", "carton+", ".carton", "ollama", "ollama:", "ollama-list", "docker-ai", "kitops", "cog", "hf:", "hf.co", "registry.ollama.ai")},
	{"durations are differences of time.Time, whose clock is never set back", nil, readsWallClock},
	{"connections of gRPC wait for servers that restart", []string{"cmd/internal/host/localgrpc"}, calls("grpc", "NewClient")},
	{"only programs end the process", []string{"cmd/ballast", "cmd/ballastd", "cmd/ballast-keyless", "cmd/ballast-fleet"}, calls("os", "Exit")},
	{"errors and logs go to a logger that is passed in", nil, calls("log", "Printf", "Println", "Fatal", "Fatalf", "Panicf")},
	{"a file is read by who may have it: the view without a name has those of everybody", []string{"snapshotter/snapshotter.go"}, viewsAll},
	{"there is no default logger", nil, calls("slog", "Default", "SetDefault", "Info", "Warn", "Error", "Debug")},
}

// literal finds string constants that contain one of the texts.
func literal(texts ...string) func(ast.Node) bool {
	return func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return false
		}
		s, err := strconv.Unquote(lit.Value)
		return err == nil && slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(s, t) })
	}
}

// is finds string constants that equal one of the texts.
func is(texts ...string) func(ast.Node) bool {
	return func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return false
		}
		s, err := strconv.Unquote(lit.Value)
		return err == nil && slices.Contains(texts, s)
	}
}

// calls finds calls of functions of a package.
func calls(pkg string, names ...string) func(ast.Node) bool {
	return func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		return ok && isCall(call, pkg, names...)
	}
}

// viewsAll finds View(""), the view of a store with all files.
func viewsAll(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "View" && is("")(call.Args[0])
}

// readsWallClock finds time.Now().UnixNano() and the like.
func readsWallClock(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(sel.Sel.Name, "Unix") {
		return false
	}
	now, ok := sel.X.(*ast.CallExpr)
	return ok && isCall(now, "time", "Now")
}

func isCall(call *ast.CallExpr, pkg string, names ...string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, sel.Sel.Name) {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// comparesDigest finds digest.Digest.Verifier, and comparisons with a computed digest.
func comparesDigest(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Verifier" && len(n.Args) == 0
	case *ast.BinaryExpr:
		return (n.Op == token.EQL || n.Op == token.NEQ) && (makesDigest(n.X) || makesDigest(n.Y))
	}
	return false
}

func makesDigest(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isCall(call, "digest", "FromBytes", "FromString", "FromReader", "NewDigest") {
			found = true
		}
		return !found
	})
	return found
}

func TestOnePlace(t *testing.T) {
	problems, err := checkOnePlace("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// checkOnePlace returns the violations of the product's code below dir.
func checkOnePlace(dir string) ([]string, error) {
	var problems []string
	err := productFiles(dir, func(name string, set *token.FileSet, f *ast.File) {
		for _, r := range onePlaceRules {
			if slices.Contains(r.only, filepath.Dir(name)) || slices.Contains(r.only, name) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if n != nil && r.find(n) {
					problems = append(problems, fmt.Sprintf("%s:%d: %s", name, set.Position(n.Pos()).Line, r.name))
				}
				return true
			})
		}
	})
	return problems, err
}

// productFiles calls f for each Go file of the product that is neither a test nor only for tests.
func productFiles(dir string, f func(name string, set *token.FileSet, file *ast.File)) error {
	for _, top := range []string{"cmd", "convert", "snapshotter", "store"} {
		err := filepath.WalkDir(filepath.Join(dir, top), func(p string, d fs.DirEntry, err error) error {
			switch {
			case os.IsNotExist(err):
				return fs.SkipDir
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() != top && strings.HasSuffix(d.Name(), "test")):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
				return nil
			}
			name, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, p, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			f(name, set, file)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// TestOnePlacePlanted checks that checkOnePlace finds planted violations, and nothing else.
func TestOnePlacePlanted(t *testing.T) {
	dir := plant(t, map[string]string{
		"store/filetable/mediatype.go":      "package filetable\nconst A = \"application/vnd.x\"\n",
		"store/verify/verify.go":            "package verify\nfunc f() { if digest.FromBytes(p) != d {}; d.Verifier() }\n",
		"store/clock.go":                    "package store\nvar a, b = time.Now().UnixNano(), info.ModTime().UnixNano()\n",
		"store/other.go":                    "package store\nconst B = \"application/vnd.x\"\n",
		"convert/a.go":                      "package convert\n// application/vnd.x in a comment\nvar e = os.Getenv(\"X\")\n",
		"convert/b.go":                      "package convert\nfunc f() { if d == digest.FromBytes(p) {}\n\td.Verifier() }\n",
		"convert/a_test.go":                 "package convert\nconst A = \"application/vnd.x\"\n",
		"convert/converttest/a.go":          "package converttest\nconst A = \"application/vnd.x\"\n",
		"convert/mediatype/mediatype.go":    "package mediatype\nconst A, B = \"application/vnd.x\", \"org.cncf.model.filepath\"\n",
		"convert/resolve/a.go":              "package resolve\nconst A, B = \"a carton\", \"carton\"\n",
		"convert/carton/a.go":               "package carton\nconst A = \"carton\"\n",
		"cmd/internal/contract/config/a.go": "package config\nvar e = os.Getenv(\"X\")\n",
		"cmd/internal/daemon/a.go":          "package daemon\nvar c, err = grpc.NewClient(\"unix:///run/x\")\n",
		"snapshotter/lazy.go":               "package snapshotter\nvar a, b = st.View(\"\"), st.View(name)\n",
		"cmd/ballast/main.go":               "package main\nfunc main() { slog.Info(\"x\")\nos.Exit(1) }\n",
	})
	got, err := checkOnePlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cmd/ballast/main.go:2: there is no default logger",
		"cmd/internal/daemon/a.go:2: connections of gRPC wait for servers that restart",
		"convert/a.go:3: the environment is read with the configuration",
		"convert/b.go:2: digests are compared in one package",
		"convert/b.go:3: digests are compared in one package",
		"convert/resolve/a.go:2: formats are named in their folders",
		"snapshotter/lazy.go:2: a file is read by who may have it: the view without a name has those of everybody",
		"store/clock.go:2: durations are differences of time.Time, whose clock is never set back",
		"store/other.go:2: media types are spelled once",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

// TestHouse checks the sizes of files and functions, the width of comments, and that every package has a package
// document, in doc.go if it has several files.
func TestHouse(t *testing.T) {
	const maxFile, maxFunc = 500, 100 // lines; functions should have 60
	const maxColumns = 120            // a tab has 4
	documented, sole, files := map[string]bool{}, map[string]bool{}, map[string]int{}
	err := productFiles("..", func(name string, set *token.FileSet, f *ast.File) {
		dir := filepath.Dir(name)
		files[dir]++
		// A package of one file has it in that file.
		if f.Doc != nil && (filepath.Base(name) == "doc.go" || f.Name.Name == "main" || files[dir] == 1) {
			documented[dir] = documented[dir] || filepath.Base(name) == "doc.go" || f.Name.Name == "main"
			sole[dir] = true
		}
		if n := set.Position(f.End()).Line; n > maxFile {
			t.Errorf("%s has %d lines, more than %d", name, n, maxFile)
		}
		for i, l := range strings.Split(read(t, filepath.Join("..", name)), "\n") {
			text := strings.TrimLeft(l, "\t")
			prose := strings.HasPrefix(text, "// ") && !strings.HasPrefix(text, "// +") && !strings.Contains(text, "  ")
			if n := 4*(len(l)-len(text)) + utf8.RuneCountInString(text); prose && n > maxColumns {
				t.Errorf("%s:%d: a comment has %d columns, more than %d", name, i+1, n, maxColumns)
			}
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				first, last := set.Position(fn.Pos()).Line, set.Position(fn.End()).Line
				if n := last - first + 1; n > maxFunc {
					t.Errorf("%s:%d: %s has %d lines, more than %d", name, first, fn.Name.Name, n, maxFunc)
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range files {
		if !documented[dir] && !(n == 1 && sole[dir]) {
			t.Errorf("%s: no package comment in doc.go", dir)
		}
	}
}
