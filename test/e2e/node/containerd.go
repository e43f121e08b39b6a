package node

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/template"
)

// versionsFile has the versions of containerd for tests, in the folder "test".
const versionsFile = "containerd.txt"

// Versions returns the versions of containerd built by `make tools-all`, oldest first. The last one
// is the default of a node.
func Versions(t TB) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, "test", versionsFile))
	if err != nil {
		t.Fatalf("%v", err)
	}
	var versions []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "#" {
			versions = append(versions, f[1])
		}
	}
	return versions
}

// said matches the version in the output of containerd --version: "containerd MODULE v2.4.2 COMMIT".
var said = regexp.MustCompile(`^containerd \S+ v?(([0-9]+)\.([0-9]+)\.[0-9]+)`)

// defaultVersion returns the newest version built by `make tools`, or that of this machine.
func defaultVersion(t TB) string {
	t.Helper()
	if repository != "" {
		versions := Versions(t)
		return versions[len(versions)-1]
	}
	out := Command(context.Background(), nil, installed(t, "containerd"), "--version")
	m := said.FindStringSubmatch(out.Stdout)
	if m == nil {
		t.Fatalf("containerd --version: %v\n%s", out.Err, out.Output())
	}
	if major, minor := atoi(m[2]), atoi(m[3]); major == 0 || major == 1 && minor < 7 {
		t.Fatalf("containerd %s is too old: ballast needs 1.7 to 2.4", m[1])
	}
	return m[1]
}

func atoi(digits string) int {
	n, _ := strconv.Atoi(digits) // a number that is too large is a large one
	return n
}

// Minor returns the minor release of a version: "2.3" for "2.3.7".
func Minor(version string) string { return version[:strings.LastIndexByte(version, '.')] }

// format returns the newest format of configuration files that a version reads.
func format(version string) int {
	switch Minor(version) {
	case "1.7":
		return 2
	case "2.0", "2.1", "2.2":
		return 3
	}
	return 4
}

//go:embed containerd.toml
var containerdConfig string

var containerdTemplate = template.Must(template.New("containerd").Parse(containerdConfig))

// Patterns for Options.Base: its format, its imports, and the tables of format 3, which a file of
// format 2 can also have.
var (
	baseFormat  = regexp.MustCompile(`(?m)^version = ([0-9])$`)
	baseImports = regexp.MustCompile(`(?m)^imports = .*\n`)
	newTables   = regexp.MustCompile(`io\.containerd\.cri\.v1\.`)
)

// ConfigureContainerd writes containerd's configuration: the main file, the settings that make the
// node private (in the main file, or as a drop-in of Options.Base), ballast's drop-in, and
// Options.Containerd. flags are passed to ballast config containerd. The configuration takes effect
// at the next start of containerd.
func (n *Node) ConfigureContainerd(t TB, flags ...string) {
	t.Helper()
	base := n.options.Base
	main := struct {
		Dir, Sandbox             string
		Format                   int
		NewTables, BinDirs, Main bool
	}{Dir: n.Dir, Sandbox: n.Registry.Ref("busybox", "1"), Format: format(n.version), Main: base == ""}
	if m := baseFormat.FindStringSubmatch(base); m != nil {
		main.Format, _ = strconv.Atoi(m[1]) // one digit
	}
	main.NewTables = main.Format > 2 || newTables.MatchString(base)
	main.BinDirs = main.NewTables && Minor(n.version) != "2.0"
	var b strings.Builder
	if err := containerdTemplate.Execute(&b, main); err != nil {
		t.Fatalf("%v", err)
	}
	n.writeNetwork(t)
	if main.Main {
		n.write(t, "containerd.toml", b.String())
	} else {
		imports := fmt.Sprintf("imports = [%q]\n", filepath.Join(n.Dir, "containerd.d", "*.toml"))
		n.write(t, "containerd.toml", imports+baseImports.ReplaceAllString(base, ""))
		n.write(t, "containerd.d/90-node.toml", b.String())
	}
	if !n.options.Stock {
		n.writeDropIn(t, flags)
	}
	if n.options.Containerd != "" {
		n.write(t, "containerd.d/20-extra.toml", fmt.Sprintf("version = %d\n%s", main.Format, n.options.Containerd))
	}
}

// MoreContainerd sets Options.Containerd for the next ConfigureContainerd.
func (n *Node) MoreContainerd(tables string) { n.options.Containerd = tables }

// DefaultConfig returns the output of `containerd config default` of a version.
func DefaultConfig(t TB, version string) string {
	t.Helper()
	out := Command(context.Background(), nil, ToolOf(t, version, "containerd"), "config", "default")
	if out.Err != nil {
		t.Fatalf("containerd config default: %v\n%s", out.Err, out.Output())
	}
	return out.Stdout
}

// writeDropIn writes the output of `ballast config containerd`. The part that must be merged
// manually is appended to the main file, which has none of these tables.
func (n *Node) writeDropIn(t TB, flags []string) {
	t.Helper()
	args := []string{"config", "containerd", "--hosts-dir", n.HostsDir(), "--containerd-config", n.ContainerdConfigFile()}
	out := n.Ballast(append(args, flags...)...)
	if out.Err != nil {
		t.Fatalf("ballast config containerd: %v\n%s", out.Err, out.Output())
	}
	snippet := out.Stdout
	if n.options.Edit != nil {
		snippet = n.options.Edit(snippet)
	}
	n.write(t, "containerd.d/10-ballast.toml", snippet)
	const merge = "#     "
	for line := range strings.Lines(snippet[strings.Index(snippet, "\nversion ="):]) {
		if strings.HasPrefix(line, merge) {
			n.append(t, "containerd.toml", strings.TrimPrefix(line, merge))
		}
	}
}

func (n *Node) append(t TB, name, content string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.Dir, name))
	if err != nil {
		t.Fatalf("%v", err)
	}
	n.write(t, name, string(b)+content)
}
