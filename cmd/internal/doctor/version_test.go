package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// The main files of nodes, without the settings for ballast.
const (
	format2 = "version = 2\nimports = [\"conf.d/*.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n"
	format3 = "version = 3\nimports = [\"conf.d/*.toml\"]\n"
	merged  = format2 + "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"ballast\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"@/certs.d\"\n"
)

// has gives the node a version of containerd, a main file, in which "@" is the node's directory,
// and the matching drop-in.
func (n *machine) has(t *testing.T, version, main string, handler string) {
	t.Helper()
	v, err := containerdversion.Parse(version)
	if err != nil {
		t.Fatal(err)
	}
	n.version = version
	n.write(t, "config.toml", strings.ReplaceAll(main, "@", n.dir))
	cfg := n.doctor.Config
	c, err := node.Host{Root: "/"}.Load(t.Context(), filepath.Join(n.dir, "config.toml"), v, node.Changes{filepath.Join(n.dir, dropin): nil})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	s := snippet.Containerd{Address: cfg.Address, Root: cfg.Root, Platform: node.HostPlatform(), HostsDir: filepath.Join(n.dir, "certs.d"), Version: v, Main: c.Main(), RuntimeHandler: handler}
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	n.write(t, dropin, b.String())
}

// aboutVersions are the checks that depend on the version of containerd.
var aboutVersions = []string{"containerd version", "containerd config", "cri", "proxy_plugins", "diff-service", "unpack_config", "hosts.toml"}

// A node of each version, set up as documented, is healthy.
func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		version, main string
		warns         []string // what the version lacks
	}{
		{"1.7", merged, []string{"has no image volumes"}},
		{"2.0", format3, []string{"has no image volumes"}},
		{"2.1", format3, nil},
		{"2.1", format2, nil},
		{"2.2", format3, nil},
		{"2.2", format2, nil},
		{"2.2", "version = 2\nimports = [\"conf.d/*.toml\"]\n[plugins.\"io.containerd.cri.v1.images\".registry.headers]\nx = [\"y\"]\n", nil},
		{"2.3", format2, nil},
		{"2.3", format3, nil},
		{"2.4", "version = 4\nimports = [\"conf.d/*.toml\"]\n", nil},
		{"2.9", format3, []string{"newer than the newest tested version", "does not read the annotation"}},
	} {
		t.Run(fmt.Sprintf("%s/%.11s", tt.version, tt.main), func(t *testing.T) {
			n := newNode(t)
			n.has(t, tt.version, tt.main, "")
			var warned []string
			for _, f := range n.run(t) {
				i := slices.IndexFunc(tt.warns, func(s string) bool { return strings.Contains(f.Message, s) })
				if i >= 0 && f.Check == "containerd version" && f.Status == node.Warn {
					warned = append(warned, tt.warns[i])
				} else if f.Status != node.OK && slices.Contains(aboutVersions, f.Check) {
					t.Errorf("%+v", f)
				}
			}
			if !slices.Equal(warned, tt.warns) {
				t.Errorf("warned: got %q, want %q", warned, tt.warns)
			}
		})
	}
}

func TestVersionFaults(t *testing.T) {
	dropIn := func(version int, tables string) func(*testing.T, *machine) {
		return func(t *testing.T, n *machine) {
			n.write(t, "conf.d/zz.toml", fmt.Sprintf("version = %d\n%s", version, tables))
		}
	}
	for _, tt := range []struct {
		name, version, main, handler string
		spoil                        func(*testing.T, *machine)
		status                       node.Status
		says, fix                    string
	}{
		{"too old", "1.7", merged, "", func(_ *testing.T, n *machine) {
			n.version = "1.6.20"
		}, node.Fail, "containerd 1.6 is too old", "install containerd 2.4"},
		{"not known", "2.4", format3, "", func(_ *testing.T, n *machine) {
			n.unknown = errdefs.ErrNotFound
		}, node.Warn, "version of containerd is unknown", "--containerd-version"},
		{"drop-in in format 4", "2.2", format3, "", func(t *testing.T, n *machine) { n.edit(t, dropin, "version = 3", "version = 4") },
			node.Fail, "reads at most 3 and does not start", "ballast config containerd --containerd-config "},
		{"our drop-in in another format", "2.1", format2, "", func(t *testing.T, n *machine) { n.edit(t, dropin, "version = 2", "version = 3") },
			node.Fail, "uses one of them for both", "ballast config containerd --containerd-config "},
		{"a drop-in of others in another format", "2.0", format3, "", dropIn(2, ""), node.Fail, "zz.toml has version = 2", "convert "},
		{"CRI in a drop-in", "1.7", merged, "", dropIn(2, "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"ballast\"\n"),
			node.Fail, "uses only those of the last", "write the settings of both into"},
		{"not merged", "1.7", strings.Split(merged, "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n")[0], "", func(*testing.T, *machine) {},
			node.Warn, "no pod uses ballast", `[plugins."io.containerd.grpc.v1.cri".containerd] snapshotter = "ballast"`},
		{"no config_path", "1.7", strings.ReplaceAll(merged, "config_path", "# config_path"), "", func(*testing.T, *machine) {},
			node.Fail, "config_path is not set", `[plugins."io.containerd.grpc.v1.cri".registry] config_path = `},
		{"no config_path, new tables", "2.1", format3, "", func(t *testing.T, n *machine) { n.edit(t, dropin, "    config_path", "    # config_path") },
			node.Fail, "config_path is not set", `[plugins."io.containerd.cri.v1.images".registry] config_path = `},
		{"handler without runtime_platforms", "2.2", format3, "m", func(t *testing.T, n *machine) { n.edit(t, dropin, `images".runtime_platforms`, `images".other`) },
			node.Fail, "the snapshotter of the handler m for pulls too", `runtime_platforms."m"] platform`},
		{"handler by annotation", "2.1", format3, "m", func(*testing.T, *machine) {},
			node.Warn, "knows the handler m of a pod from an annotation only", "io.containerd.cri.runtime-handler: m"},
		{"drop-in missing", "1.7", merged, "", func(t *testing.T, n *machine) {
			n.write(t, dropin, "")
			n.write(t, "config.toml", "version = 2\n")
		}, node.Fail, `no proxy plugin of type "snapshot"`, "ballast config containerd > "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.has(t, tt.version, tt.main, tt.handler)
			tt.spoil(t, n)
			findings := n.run(t)
			for _, f := range findings {
				if f.Status == tt.status && strings.Contains(f.Message, tt.says) && strings.Contains(f.Fix, tt.fix) {
					return
				}
			}
			t.Errorf("no finding %s with %q, fixed by %q, in:\n%+v", tt.status, tt.says, tt.fix, findings)
		})
	}
}

// config_path can be a list where pulls are local: there it is split.
func TestConfigPathListWithLocalPulls(t *testing.T) {
	for version, list := range map[string]string{"1.7": "", "2.0": "", "2.4": "use_local_image_pull = true"} {
		n := newNode(t)
		n.has(t, version, map[bool]string{true: merged, false: format3}[version == "1.7"], "")
		file := map[bool]string{true: "config.toml", false: dropin}[version == "1.7"]
		n.edit(t, file, `certs.d"`, `certs.d:/etc/docker/certs.d"`)
		if list != "" {
			n.write(t, "conf.d/zz.toml", "version = 3\n[plugins.\"io.containerd.cri.v1.images\"]\n"+list+"\n")
		}
		for _, f := range n.run(t) {
			if f.Check == "cri" && f.Status != node.OK {
				t.Errorf("%s: %+v", version, f)
			}
		}
	}
}

// hosts writes a hosts.toml, with the facade and its keys.
func (n *machine) hosts(t *testing.T, h snippet.Hosts) {
	t.Helper()
	cfg := n.doctor.Config
	h.Facade, h.CA, h.Client = cfg.Facade.Listen, facadetls.CAFile(cfg.Root), facadetls.ClientFile(cfg.Root)
	var b strings.Builder
	if err := h.Write(&b); err != nil {
		t.Fatal(err)
	}
	n.write(t, "certs.d/"+h.Registry+"/hosts.toml", b.String())
}

// edit replaces old, which must be in the file, with new text.
func (n *machine) edit(t *testing.T, name, old, with string) {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(n.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(p), old) {
		t.Fatalf("%s does not have %q", name, old)
	}
	n.write(t, name, strings.ReplaceAll(string(p), old, with))
}
