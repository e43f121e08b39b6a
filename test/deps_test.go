package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const module = "github.com/ballast-dev/ballast"

// depsRules lists the packages of this module that each package may import. The direction is cmd →
// {convert, snapshotter} → store. FORMATS are the folders of formats without a line; in a line, all
// that convert/formats lists. It is a statement of policy: change it in a separate commit, with the
// reason.
const depsRules = `
store/verify              :
store/boltfile            :
store/durable             :
store/durable/durabletest :
store/offheap             :
store/span                :
store/internal/dirs       :
store/filetable           : store/verify
store/transfer            : store/offheap
store/internal/staging    : store/filetable store/internal/dirs
store/internal/meta       : store/boltfile store/durable store/filetable store/verify
store/internal/object     : store/filetable store/internal/dirs store/internal/meta store/internal/staging store/verify
store/internal/chunkfile  : store/filetable store/internal/staging store/transfer store/verify
store/internal/hydrate    : store/durable store/filetable store/internal/chunkfile store/internal/dirs store/internal/meta store/internal/staging store/span store/transfer store/verify
store/internal/expose     : store/filetable store/internal/chunkfile store/internal/hydrate store/internal/meta store/internal/object store/internal/staging store/transfer store/verify
store                     : store/boltfile store/filetable store/internal/chunkfile store/internal/dirs store/internal/expose store/internal/hydrate store/internal/meta store/internal/object store/internal/staging store/transfer store/verify
store/storetest           : store store/filetable store/internal/meta store/internal/object store/transfer store/verify
store/storetest/disktest  :
convert/mediatype         : store/filetable
convert/chunked           : convert/mediatype store/filetable store/verify
convert                   : convert/chunked convert/mediatype store/filetable store/verify
convert/contentrange      :
convert/hostname          :
convert/local             :
convert/headers           : convert convert/gguf convert/safetensors
convert/losses            : convert convert/mediatype
convert/gguf              : convert
convert/safetensors       : convert
convert/ollama            : convert convert/format convert/losses convert/mediatype convert/ollama/localstore convert/remote convert/safetensors store/filetable store/verify
convert/ollama/localstore : convert convert/format convert/local store/transfer store/verify
convert/carton            : convert convert/carton/zipdir convert/contentrange convert/format convert/local convert/losses convert/mediatype store/filetable store/transfer store/verify
convert/carton/zipdir     : convert store/filetable
convert/image             : convert convert/mediatype store/filetable store/verify
convert/remote            : convert convert/contentrange convert/hostname convert/mediatype store/transfer store/verify
convert/remote/peerstest  : convert/contentrange
convert/layout            : convert convert/format convert/local convert/mediatype store/durable store/transfer store/verify
convert/huggingface       : convert convert/format convert/mediatype convert/remote store/filetable store/verify
convert/resolve           : convert convert/format convert/formats convert/image convert/mediatype convert/remote store/filetable store/transfer store/verify
convert/files             : convert convert/format convert/headers convert/local convert/mediatype store/filetable store/verify
convert/format            : convert convert/losses convert/mediatype convert/remote store/filetable store/transfer
convert/formats           : convert/format FORMATS
FORMATS                   : convert convert/format convert/losses convert/mediatype store/filetable store/verify
convert/pullsecret        : convert/remote store/durable
convert/registry          : convert convert/format convert/formats convert/image convert/mediatype convert/pullsecret convert/remote convert/resolve convert/signature store store/filetable store/span store/transfer store/verify
convert/signature/dsse    : convert/mediatype store/verify
convert/signature/keyless : store/verify
convert/hashstate         : convert/mediatype convert/remote convert/signature/dsse store/filetable store/verify
convert/signature/oms     : convert/signature/dsse store/filetable store/verify
convert/signature/cosign  : convert/mediatype convert/signature/dsse store/verify
convert/signature         : convert convert/mediatype convert/remote convert/signature/cosign convert/signature/dsse convert/signature/keyless convert/signature/oms store store/filetable store/span store/verify
convert/export            : convert convert/chunked convert/format convert/gguf convert/headers convert/image convert/layout convert/mediatype convert/remote convert/resolve convert/safetensors convert/signature/cosign convert/signature/dsse convert/signature/oms store store/filetable store/transfer store/verify
convert/converttest       : convert convert/mediatype store/filetable store/verify
convert/registrytest      : convert/converttest
snapshotter               : snapshotter/tree store store/boltfile store/durable store/filetable store/span store/verify
snapshotter/tree          : store/durable store/filetable
snapshotter/differ        : snapshotter store store/filetable store/transfer store/verify
snapshotter/lazy          : snapshotter/lazy/fdstore store/offheap store/verify
snapshotter/lazy/fdstore  :
cmd/internal/contract/config        : convert/formats convert/hostname convert/remote store/filetable store/verify
cmd/internal/door/facadetls         : store/durable
cmd/internal/contract/manualtest    :
cmd/internal/door/portowner         :
cmd/internal/host/containerdversion :
cmd/internal/installer/snippet      : cmd/internal/host/containerdversion convert/mediatype convert/registry
cmd/internal/host/dirs              : cmd/internal/contract/config cmd/internal/door/facadetls snapshotter store
cmd/internal/door/credentialprovider : convert/hostname convert/remote
cmd/internal/door/upstream          : cmd/internal/contract/config cmd/internal/door/credentialprovider cmd/internal/host/dirs convert/format convert/formats convert/hostname convert/remote convert/resolve convert/signature
cmd/internal/contract/wire          :
cmd/internal/contract/modelname     : convert/remote convert/resolve store
cmd/internal/contract/translate     : cmd/internal/contract/wire convert convert/formats convert/headers convert/image convert/losses convert/signature snapshotter store store/filetable
cmd/internal/daemon/metrics         : cmd/internal/contract/wire convert/formats convert/registry convert/signature snapshotter/lazy store store/filetable
cmd/internal/daemon/jobs            : cmd/internal/contract/config cmd/internal/contract/modelname cmd/internal/contract/translate cmd/internal/contract/wire cmd/internal/daemon/metrics cmd/internal/host/dirs convert convert/layout convert/local convert/ollama/localstore convert/pullsecret convert/registry convert/hostname convert/remote convert/resolve snapshotter snapshotter/differ snapshotter/lazy store store/filetable store/transfer
cmd/internal/door/serve             :
cmd/internal/door/facadeport        : cmd/internal/contract/config cmd/internal/contract/wire cmd/internal/daemon/metrics cmd/internal/door/facadetls cmd/internal/door/portowner cmd/internal/door/serve
cmd/internal/daemon/origins         : cmd/internal/contract/modelname cmd/internal/host/ctrd convert convert/formats convert/mediatype convert/registry convert/resolve store
cmd/internal/daemon/hostmounts      : cmd/internal/contract/modelname cmd/internal/contract/wire cmd/internal/daemon/jobs convert/registry convert/remote snapshotter snapshotter/differ store
cmd/internal/daemon/care            : cmd/internal/contract/modelname cmd/internal/contract/translate cmd/internal/contract/wire cmd/internal/daemon/origins cmd/internal/host/ctrd convert/remote snapshotter store store/transfer
cmd/internal/door/hostsfile         : cmd/internal/contract/config store/verify
cmd/internal/daemon/admin           : cmd/internal/contract/modelname cmd/internal/contract/translate cmd/internal/contract/wire cmd/internal/daemon/care cmd/internal/daemon/jobs convert convert/headers convert/image convert/registry convert/remote convert/resolve convert/signature store store/filetable
cmd/internal/host/localgrpc         :
cmd/internal/host/ctrd              : cmd/internal/host/containerdversion cmd/internal/host/localgrpc store/verify
cmd/internal/installer/node         : cmd/internal/contract/config cmd/internal/door/hostsfile cmd/internal/host/containerdversion cmd/internal/host/ctrd cmd/internal/installer/snippet
cmd/internal/installer/setup        : cmd/internal/contract/config cmd/internal/contract/wire cmd/internal/door/facadetls cmd/internal/host/containerdversion cmd/internal/host/ctrd cmd/internal/host/dirs cmd/internal/installer/node cmd/internal/installer/snippet contrib/systemd convert/mediatype convert/signature/keyless store store/durable store/filetable
contrib/systemd                     :
cmd/internal/doctor                 : cmd/internal/contract/config cmd/internal/contract/wire cmd/internal/door/hostsfile cmd/internal/door/portowner cmd/internal/host/containerdversion cmd/internal/host/ctrd cmd/internal/installer/node cmd/internal/installer/setup cmd/internal/installer/snippet convert/signature/keyless
cmd/internal/daemon/ahead           :
cmd/internal/daemon/hashtables      : cmd/internal/contract/config convert/hashstate convert/remote convert/signature/dsse store store/filetable store/transfer
cmd/internal/daemon/tracing         :
cmd/internal/daemon                 : *
cmd/ballastd                        : cmd/internal/contract/config cmd/internal/contract/wire cmd/internal/daemon cmd/internal/daemon/ahead snapshotter/lazy snapshotter/lazy/fdstore
cmd/ballast                         : *
cmd/ballast-keyless                 : convert/signature/keyless
`

// formatUsers are the packages besides convert/formats that may import the folder of a format, with the
// reason. No other package depends on one: a new format is a folder and a line in convert/formats.
var formatUsers = []struct{ pkg, format, why string }{
	{"convert/export", "convert/layout", "a layout is a target as well"},
	{"cmd/ballast", "convert/layout", "a layout is a target as well"},
	{"cmd/ballast", "convert/ollama/localstore", "\"ballast import ollama\" is a command for the store of Ollama"},
	{"cmd/internal/daemon/jobs", "convert/layout", "it does the work of \"ballast import\""},
	{"cmd/internal/daemon/jobs", "convert/ollama/localstore", "it does the work of \"ballast import ollama\""},
}

// foreignRules are foreign packages that some packages must not import, with the reason.
var foreignRules = []struct{ pkg, banned, why string }{
	{"store", "github.com/containerd/containerd", "the store knows nothing of its host"},
	{"store", "net/http", "a Fetcher is the only way out"},
	{"store/transfer", "os", "it knows no disk"},
	{"store/transfer", module + "/store/filetable", "it knows no table"},
	{"store", "go.etcd.io/bbolt", "store/internal/meta is the only one to know how records are kept"},
	{"store/internal/object", "go.etcd.io/bbolt", "store/internal/meta is the only one to know how records are kept"},
	{"snapshotter", "net/http", "snapshots are made of what the store has"},
	{"snapshotter/tree", "github.com/containerd/containerd", "it makes files and knows nothing of snapshots"},
	{"snapshotter/lazy/fdstore", "github.com/hanwen/go-fuse", "it knows file descriptors, not FUSE"},
	{"snapshotter/differ", "net/http", "snapshots are made of what the store has"},
	{"convert/mediatype", "net/http", "it is a table"},
	{"convert/image", "net/http", "conversion is a pure function"},
	{"convert/resolve", "net/http", "a remote.Client is the only way out"},
	{"convert/image", "time", "conversion is a pure function"},
	{"convert/image", "os", "conversion is a pure function"},
	{"FORMATS", "os", "parsers read an Artifact and nothing else"},
	{"FORMATS", "net/http", "parsers read an Artifact and nothing else"},
	{"convert/ollama", "os", "parsers read an Artifact and nothing else"},
	{"cmd/ballast", module + "/cmd/internal/daemon", "it is a client of the admin socket"},
}

func TestDeps(t *testing.T) {
	problems, err := checkDeps("..", depsRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// modules are the Go modules of this repository, with the reason for each. A program of others needs none: it is
// built with the dependencies of its own go.mod, from containerd.txt, programs.txt or clients.txt.
var modules = []struct{ dir, why string }{
	{".", "the product"},
	{"cmd/ballast-fleet", "only it links Kubernetes"},
	{"contrib/release", "what builds a release is not in it"},
	{"test", "what only tests need"},
	{"test/chart", "Helm, Kustomize and Prometheus would decide about the versions of what other tests share with the product"},
	{"test/kubernetes", "the module of Kubernetes has others in directories of its repository, so its go.mod does not build it"},
}

func TestModules(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files", "go.mod", "*/go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for name := range strings.Lines(string(out)) {
		got = append(got, filepath.Dir(strings.TrimSpace(name)))
	}
	for _, m := range modules {
		want = append(want, m.dir)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("modules (-want +got):\n%s", d)
	}
}

// closures are what programs must not link, with the reason. A pattern matches a package and those below it; the one
// with "!" allows again what an earlier one forbids.
var closures = []struct {
	dir, pkg string
	banned   string
	why      string
}{
	{"..", "./cmd/ballast ./cmd/ballastd ./cmd/internal/...", "k8s.io sigs.k8s.io !k8s.io/cri-api", "only ballast-fleet is a program for Kubernetes"},
	{"..", "./cmd/ballast-keyless", "k8s.io sigs.k8s.io !k8s.io/klog/v2", "only ballast-fleet is a program for Kubernetes"},
	{
		"..", "./cmd/ballastd",
		module + "/cmd/internal/installer/setup " + module + "/cmd/internal/installer/node " + module + "/cmd/internal/doctor " + module + "/convert/export " +
			"github.com/containerd/containerd/v2/cmd github.com/containerd/containerd/v2/client dario.cat/mergo " +
			"github.com/CycloneDX",
		"what faces tenants as root is not what installs, judges and publishes",
	},
	{"..", "./cmd/ballast ./cmd/ballastd", "github.com/sigstore github.com/go-openapi", "keyless signatures are verified by a process without privileges"},
	{"../cmd/ballast-fleet", "./...", module + " !" + module + "/cmd/ballast-fleet !" + module + "/cmd/internal/contract/wire !" + module + "/convert/hostname", "it is a client of the daemon"},
	{"..", "./cmd/internal/contract/wire", module + " !" + module + "/cmd/internal/contract/wire", "clients link the contract, not the engine"},
}

// TestClosures looks at all that programs link, not only at what they import themselves.
func TestClosures(t *testing.T) {
	for _, c := range closures {
		cmd := exec.Command("go", append([]string{"list", "-deps"}, strings.Fields(c.pkg)...)...)
		cmd.Dir = c.dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, pkg := range linked(strings.Fields(string(out)), c.banned) {
			t.Errorf("%s/%s links %s: %s", c.dir, c.pkg, pkg, c.why)
		}
	}
}

// linked returns the packages that patterns forbid.
func linked(pkgs []string, patterns string) (banned []string) {
	for _, pkg := range pkgs {
		bad := false
		for _, p := range strings.Fields(patterns) {
			p, again := strings.CutPrefix(p, "!")
			if pkg == p || strings.HasPrefix(pkg, p+"/") {
				bad = !again
			}
		}
		if bad {
			banned = append(banned, pkg)
		}
	}
	return banned
}

// TestLinked finds planted packages.
func TestLinked(t *testing.T) {
	got := linked([]string{"os", "a", "a/b", "a/b/c", "ab"}, "a !a/b")
	if d := cmp.Diff([]string{"a"}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestLayout compares the picture in the documentation of the store with the rules.
func TestLayout(t *testing.T) {
	doc, err := os.ReadFile("../store/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, layout, _ := strings.Cut(string(doc), "# Layout")
	layout, _, _ = strings.Cut(layout, "\n// #")
	got, want := map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(layout) {
		if name, deps, ok := strings.Cut(strings.TrimPrefix(line, "//\t"), " : "); ok || strings.HasSuffix(strings.TrimSpace(line), " :") {
			name = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), ":"))
			got[name] = slices.Sorted(slices.Values(strings.Fields(deps)))
		}
	}
	for line := range strings.Lines(depsRules) {
		name, deps, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || name != "store" && !strings.HasPrefix(name, "store/") || strings.HasSuffix(name, "test") {
			continue
		}
		var short []string
		for _, d := range strings.Fields(deps) {
			short = append(short, filepath.Base(d))
		}
		want[filepath.Base(name)] = slices.Sorted(slices.Values(short))
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("imports (-rules +picture):\n%s", d)
	}
}

// checkDeps returns the violations in the module at dir: a package without a line, an import that is
// not in its line, a banned foreign import, a line without a package.
func checkDeps(dir, text string) ([]string, error) {
	rules := map[string][]string{}
	for line := range strings.Lines(text) {
		if pkg, deps, ok := strings.Cut(line, ":"); ok {
			rules[strings.TrimSpace(pkg)] = strings.Fields(deps)
		}
	}
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(strings.ReplaceAll(line, module+"/", "./"))
		imports[strings.TrimPrefix(f[0], "./")] = f[1:]
	}
	problems := checkFormats(imports)
	for pkg, imps := range imports {
		rule := pkg
		if _, ok := rules[pkg]; !ok && isFormat(imports, pkg) {
			rule = "FORMATS"
		}
		allowed, ok := rules[rule]
		if !ok {
			problems = append(problems, pkg+": not in depsRules")
			continue
		}
		for _, imp := range imps {
			dep, ours := strings.CutPrefix(imp, "./")
			listed := slices.Contains(allowed, dep) || slices.Contains(allowed, "*") || slices.Contains(allowed, "FORMATS") && isFormat(imports, dep)
			if ours && !listed {
				problems = append(problems, pkg+" must not import "+dep)
			}
			for _, r := range foreignRules {
				banned := strings.Replace(r.banned, module+"/", "./", 1)
				if rule == r.pkg && (imp == banned || strings.HasPrefix(imp, banned+"/")) {
					problems = append(problems, pkg+" must not import "+dep+": "+r.why)
				}
			}
		}
	}
	for pkg := range rules {
		if imports[pkg] == nil && pkg != "FORMATS" {
			problems = append(problems, pkg+": in depsRules, but there is no such package")
		}
	}
	slices.Sort(problems)
	return problems, nil
}

// isFormat reports whether a package is the folder of a format, which convert/formats imports, or is
// below one.
func isFormat(imports map[string][]string, pkg string) bool {
	return slices.ContainsFunc(imports["convert/formats"], func(imp string) bool {
		f := strings.TrimPrefix(imp, "./")
		return f != "convert/format" && (pkg == f || strings.HasPrefix(pkg, f+"/"))
	})
}

// checkFormats returns packages that import a format against the rules, and outdated entries of
// formatUsers.
func checkFormats(imports map[string][]string) (problems []string) {
	for pkg, imps := range imports {
		for _, imp := range imps {
			dep := strings.TrimPrefix(imp, "./")
			own := isFormat(imports, pkg) && (strings.HasPrefix(dep, pkg+"/") || strings.HasPrefix(pkg, dep+"/"))
			if pkg == "convert/formats" || own || !isFormat(imports, dep) {
				continue
			}
			if !slices.ContainsFunc(formatUsers, func(u struct{ pkg, format, why string }) bool { return u.pkg == pkg && u.format == dep }) {
				problems = append(problems, pkg+" must not import "+dep+": only convert/formats knows formats")
			}
		}
	}
	for _, u := range formatUsers {
		if imports[u.pkg] != nil && !slices.Contains(imports[u.pkg], "./"+u.format) {
			problems = append(problems, u.pkg+": in formatUsers, but it does not import "+u.format)
		}
	}
	return problems
}

// TestDepsPlanted checks that checkDeps finds planted violations.
func TestDepsPlanted(t *testing.T) {
	dir := plant(t, map[string]string{
		"go.mod":            "module " + module + "\n\ngo 1.26\n",
		"store/a.go":        "package store\nimport _ \"net/http\"\n",
		"convert/a.go":      "package convert\nimport _ \"" + module + "/store\"\n",
		"snapshotter/a.go":  "package snapshotter\nimport _ \"" + module + "/convert\"\n",
		"surprise/store.go": "package surprise\n",

		"convert/format/a.go":   "package format\n",
		"convert/formats/a.go":  "package formats\nimport (\n\t_ \"" + module + "/convert/format\"\n\t_ \"" + module + "/convert/fresh\"\n)\n",
		"convert/fresh/a.go":    "package fresh\nimport (\n\t_ \"" + module + "/convert/format\"\n\t_ \"os\"\n)\n",
		"convert/registry/a.go": "package registry\nimport _ \"" + module + "/convert/fresh\"\n",

		"cmd/ballast/a.go":               "package main\nimport _ \"" + module + "/cmd/internal/daemon/admin\"\nfunc main() {}\n",
		"cmd/internal/daemon/admin/a.go": "package admin\n",
	})
	got, err := checkDeps(dir, "store :\nconvert : store\nsnapshotter : store\nremoved : store\n"+
		"convert/format :\nconvert/formats : convert/format FORMATS\nFORMATS : convert/format\nconvert/registry : *\n"+
		"cmd/internal/daemon/admin :\ncmd/ballast : *\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cmd/ballast must not import cmd/internal/daemon/admin: it is a client of the admin socket",
		"cmd/ballast: in formatUsers, but it does not import convert/layout",
		"cmd/ballast: in formatUsers, but it does not import convert/ollama/localstore",
		"convert/fresh must not import os: parsers read an Artifact and nothing else", // it needs no line
		"convert/registry must not import convert/fresh: only convert/formats knows formats",
		"removed: in depsRules, but there is no such package",
		"snapshotter must not import convert",
		"store must not import net/http: a Fetcher is the only way out",
		"surprise: not in depsRules",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

// plant writes files below a temporary directory.
func plant(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
