package node

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// files writes files of a host, by path.
func files(t *testing.T, all map[string]string) Host {
	t.Helper()
	h := Host{Root: t.TempDir()}
	for p, text := range all {
		name := filepath.Join(h.Root, p)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

const mainFile = "/etc/containerd/config.toml"

// paths returns the paths of the files of a configuration.
func paths(c *Containerd) (out []string) {
	for _, f := range c.Files {
		out = append(out, f.Path)
	}
	return out
}

// TestLoad reads a main file and drop-ins of three formats as containerd does: by globs, relative paths
// and imports of imports, in this order, with the settings of CRI in the tables of format 3.
func TestLoad(t *testing.T) {
	h := files(t, map[string]string{
		mainFile: `version = 2
imports = ["conf.d/*.toml", "/opt/last.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "example.com/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "nvidia"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
`,
		"/etc/containerd/conf.d/20-b.toml": "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = \"nydus\"\n",
		"/etc/containerd/conf.d/10-a.toml": "version = 3\nimports = [\"/opt/deep.toml\"]\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = \"stargz\"\n",
		"/etc/containerd/conf.d/ignored":   "broken",
		"/opt/last.toml":                   "version = 4\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = \"/etc/certs\"\n",
		"/opt/deep.toml":                   "version = 3\n[proxy_plugins.nydus]\ntype = \"snapshot\"\naddress = \"/run/nydus.sock\"\n",
	})
	c, err := h.Load(t.Context(), mainFile, containerdversion.Newest, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{mainFile, "/etc/containerd/conf.d/10-a.toml", "/etc/containerd/conf.d/20-b.toml", "/opt/last.toml", "/opt/deep.toml"}
	if d := cmp.Diff(want, paths(c)); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if got := []string{c.snapshotter(), c.Sandbox(), c.defaultRuntime(), c.Proxies["nydus"].Address, strings.Join(c.HostsDirs(), ":"), c.From(containerdversion.PluginImages, "snapshotter")}; !cmp.Equal(got,
		[]string{"nydus", "example.com/pause:1", "nvidia", "/run/nydus.sock", "/etc/certs", "/etc/containerd/conf.d/20-b.toml"}) {
		t.Errorf("got %q", got)
	}
	if _, err := h.HandlerLike(c, nil, "nvidia"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a handler of others: %v", err)
	}

	planned, err := h.Load(t.Context(), mainFile, containerdversion.Newest, Changes{
		"/etc/containerd/conf.d/20-b.toml": nil,
		"/etc/containerd/conf.d/15.toml":   []byte("version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = \"ballast\"\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	diff := Diff(c, planned)
	if len(diff) != 1 || diff[0].Before != "nydus" || diff[0].After != "ballast" || diff[0].String() != "io.containerd.cri.v1.images.snapshotter" {
		t.Errorf("difference: %+v", diff)
	}
}

// TestLoadOldContainerd reads a configuration as containerd 1.7, which takes the table of a plugin from the last file
// that has it.
func TestLoadOldContainerd(t *testing.T) {
	h := files(t, map[string]string{
		mainFile:      "version = 2\nimports = [\"/etc/x.toml\"]\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = \"/etc/certs\"\n",
		"/etc/x.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = \"x\"\n",
	})
	for v, want := range map[containerdversion.Version]string{{Major: 1, Minor: 7}: "", {Major: 2, Minor: 4}: "/etc/certs"} {
		c, err := h.Load(t.Context(), mainFile, v, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := c.Setting(containerdversion.PluginImages, "registry", "config_path").(string); got != want || c.snapshotter() != "x" {
			t.Errorf("%v: config_path %q, want %q; snapshotter %q", v, got, want, c.snapshotter())
		}
	}
}

// TestLoadFaults names the file that cannot be read, and ends with imports that go in circles.
func TestLoadFaults(t *testing.T) {
	for name, tt := range map[string]struct{ main, other, names string }{
		"broken drop-in": {"imports = [\"/etc/*.toml\"]\n", "version =\n", "/etc/x.toml"},
		"missing import": {"imports = [\"/etc/none.toml\"]\n", "", "/etc/none.toml"},
		"wrong type":     {"version = \"three\"\n", "", mainFile},
	} {
		h := files(t, map[string]string{mainFile: tt.main, "/etc/x.toml": tt.other})
		if _, err := h.Load(t.Context(), mainFile, containerdversion.Newest, nil); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := files(t, map[string]string{mainFile: "imports = [\"/etc/x.toml\"]\n", "/etc/x.toml": "imports = [\"" + mainFile + "\"]\n"})
	if c, err := h.Load(t.Context(), mainFile, containerdversion.Newest, nil); err != nil || len(c.Files) != 2 {
		t.Errorf("a circle: %+v, %v", c, err)
	}
	if c, err := files(t, nil).Load(t.Context(), mainFile, containerdversion.Newest, nil); err != nil || len(c.Files) != 0 {
		t.Errorf("no file: %+v, %v", c, err)
	}
}

// TestConfigOf finds the configuration in the arguments of containerd.
func TestConfigOf(t *testing.T) {
	for args, want := range map[string]string{
		"containerd": "", "containerd --config /a/b.toml": "/a/b.toml", "containerd -c /a": "/a", "containerd --config=/a --log-level info": "/a",
		"containerd -c relative": "", "containerd --config": "",
	} {
		if got := configOf(strings.Fields(args)); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}

// TestHandlerLike: of a list of handlers the first counts that the node has, and the default handler of a node where
// NVIDIA's is still to come is not taken in its place.
func TestHandlerLike(t *testing.T) {
	const runtimes = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes."
	const nvidia = runtimes + "nvidia.options]\nBinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n"
	const plain = "version = 3\n" + runtimes + "runc.options]\nBinaryName = \"/usr/sbin/runc\"\n"
	gpu := map[string]string{"/sys/bus/pci/devices/0000:00:1e.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:00:1e.0/class": "0x030200\n"}
	for name, tt := range map[string]struct {
		config string
		like   []string
		host   map[string]string
		want   any
		refuse error
	}{
		"default":                 {plain + nvidia, nil, gpu, "/usr/sbin/runc", nil},
		"default is built in":     {"version = 3\n", nil, nil, nil, nil},
		"named":                   {plain + nvidia, []string{"nvidia"}, nil, "/usr/local/nvidia/toolkit/nvidia-container-runtime", nil},
		"first":                   {plain + nvidia, []string{"nvidia", DefaultHandler}, gpu, "/usr/local/nvidia/toolkit/nvidia-container-runtime", nil},
		"the default in its turn": {plain + nvidia, []string{DefaultHandler, "nvidia"}, gpu, "/usr/sbin/runc", nil},
		"no GPU":                  {plain, []string{"nvidia", DefaultHandler}, nil, "/usr/sbin/runc", nil},
		"another device of NVIDIA": {plain, []string{"nvidia", DefaultHandler}, map[string]string{
			"/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:00:1f.0/class": "0x020000\n"}, "/usr/sbin/runc", nil},
		"a GPU, nothing of NVIDIA's": {plain, []string{"kata", DefaultHandler}, gpu, "/usr/sbin/runc", nil},
		"a GPU, too early":           {plain, []string{"nvidia", DefaultHandler}, gpu, nil, errdefs.ErrUnavailable},
		"none":                       {plain, []string{"nvidia", "kata"}, nil, nil, errdefs.ErrFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			all := maps.Clone(tt.host)
			if all == nil {
				all = map[string]string{}
			}
			all[mainFile] = tt.config
			h := files(t, all)
			c, err := h.Load(t.Context(), mainFile, containerdversion.Newest, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := h.HandlerLike(c, tt.like, "ballast")
			if binary := containerdversion.Setting(got, "options", "BinaryName"); binary != tt.want || !errors.Is(err, tt.refuse) {
				t.Errorf("got %v, %v, want %v, %v", binary, err, tt.want, tt.refuse)
			}
			if err != nil && !strings.Contains(err.Error(), "nvidia") {
				t.Errorf("the error names no handler: %v", err)
			}
		})
	}
}

// TestDropInThatIsRead checks containerds without ballast: what doctor says to do writes a drop-in that containerd
// reads.
func TestDropInThatIsRead(t *testing.T) {
	const k3s = "/var/lib/rancher/k3s/agent/etc/containerd/"
	for _, tt := range []struct {
		file, text, want string
		others           string // another file
	}{
		{mainFile, "version = 3\n", "mkdir -p /etc/containerd/conf.d && ballast config containerd > /etc/containerd/conf.d/ballast.toml && systemctl restart containerd", ""},
		{mainFile, "version = 2\nimports = [\"/opt/*/x.toml\", \"config.d/*.toml\", \"/opt/one.toml\"]\n", " > /etc/containerd/config.d/ballast.toml ", "/opt/one.toml"},
		{k3s + "config.toml", "version = 3\nimports = [\"" + k3s + "config-v3.toml.d/*.toml\"]\n", " > " + k3s + "config-v3.toml.d/ballast.toml ", ""},
		{k3s + "config.toml", "version = 3\n", "fix: ballast setup", ""},
		{mainFile, "version = 3\n", "fix: ballast doctor --fix", RecordFile},
	} {
		all := map[string]string{tt.file: tt.text}
		if tt.others != "" {
			all[tt.others] = ""
		}
		h := files(t, all)
		c, err := h.Load(t.Context(), tt.file, containerdversion.Newest, nil)
		if err != nil {
			t.Fatal(err)
		}
		k := Checker{Host: h, Config: config.Default(), Unit: "containerd"}
		k.Check(c)
		if got := k.Failed()[0].Text(); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.text, got, tt.want)
		}
	}
}
