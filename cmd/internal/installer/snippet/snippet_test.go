package snippet

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	hosts "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

const facade = "127.0.0.1:5757"

// TestContainerd loads the drop-in as containerd does, as an import of a file with its own runtime,
// which must be kept.
func TestContainerd(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    Containerd
		want map[string]any // by key below plugins; nil: must not be there
	}{
		{"all pods", Containerd{}, map[string]any{
			"io.containerd.cri.v1.images/snapshotter":                           "ballast",
			"io.containerd.cri.v1.images/registry/config_path":                  "/etc/containerd/certs.d",
			"io.containerd.cri.v1.runtime/containerd/runtimes/runc/snapshotter": nil,
		}},
		{"one handler", Containerd{RuntimeHandler: "model.v1", Handler: map[string]any{"runtime_type": "io.containerd.runc.v2", "options": map[string]any{"SystemdCgroup": true}}}, map[string]any{
			"io.containerd.cri.v1.images/snapshotter":                                         "overlayfs",
			"io.containerd.cri.v1.images/registry/config_path":                                "/etc/containerd/certs.d",
			"io.containerd.cri.v1.runtime/containerd/runtimes/model.v1/snapshotter":           "ballast",
			"io.containerd.cri.v1.runtime/containerd/runtimes/model.v1/runtime_type":          "io.containerd.runc.v2",
			"io.containerd.cri.v1.runtime/containerd/runtimes/model.v1/options/SystemdCgroup": true,
		}},
		{"no kubernetes", Containerd{NoCRI: true}, map[string]any{
			"io.containerd.cri.v1.images/snapshotter": "overlayfs",
			"io.containerd.cri.v1.images/registry":    nil,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.c
			c.Address, c.Root, c.Platform, c.HostsDir = "/run/b.sock", "/data/ballast", "linux/amd64", "/etc/containerd/certs.d"
			got := load(t, c)

			wantProxies := map[string]config.ProxyPlugin{
				Snapshotter: {Type: "snapshot", Address: "/run/b.sock", Platform: "linux/amd64", Capabilities: []string{"remap-ids"}, Exports: map[string]string{
					"root": "/data/ballast", "enable_remote_snapshot_annotations": "true",
				}},
				Differ: {Type: "diff", Address: "/run/b.sock", Platform: "linux/amd64"},
			}
			if diff := cmp.Diff(got.ProxyPlugins, wantProxies); diff != "" {
				t.Errorf("proxy plugins (got, want):\n%s", diff)
			}
			tt.want["io.containerd.service.v1.diff-service/default"] = []any{Differ, "walking"}
			tt.want["io.containerd.transfer.v1.local/unpack_config"] = []any{
				map[string]any{"platform": "linux/amd64", "snapshotter": "overlayfs", "differ": "walking"},
				map[string]any{"platform": "linux/amd64", "snapshotter": Snapshotter, "differ": Differ, "layer_types": anys(mediatype.OwnLayers())},
			}
			tt.want["io.containerd.cri.v1.runtime/containerd/runtimes/runc/runtime_type"] = "io.containerd.runc.v2"
			for key, want := range tt.want {
				if diff := cmp.Diff(lookup(got.Plugins, key), want); diff != "" {
					t.Errorf("%s (got, want):\n%s", key, diff)
				}
			}
		})
	}
}

// Only versions that are known to do it correctly unpack layers in parallel.
func TestContainerdCapabilities(t *testing.T) {
	for v, want := range map[containerdversion.Version][]string{
		{}: {"remap-ids"}, {Major: 1, Minor: 7}: nil, {Major: 2, Minor: 3}: {"remap-ids"}, {Major: 2, Minor: 4}: {"remap-ids", "rebase"},
	} {
		c := Containerd{Address: "/run/b.sock", Root: "/data/ballast", Platform: "linux/amd64", HostsDir: "/etc/containerd/certs.d", Version: v}
		if diff := cmp.Diff(load(t, c).ProxyPlugins[Snapshotter].Capabilities, want); diff != "" {
			t.Errorf("%v (got, want):\n%s", v, diff)
		}
	}
}

func anys(l []string) (out []any) {
	for _, s := range l {
		out = append(out, s)
	}
	return out
}

// load writes the drop-in next to a main file and loads both.
func load(t *testing.T, c Containerd) *config.Config {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	var strict config.Config
	if err := toml.NewDecoder(strings.NewReader(b.String())).DisallowUnknownFields().Decode(&strict); err != nil {
		t.Fatalf("%v in:\n%s", err, b.String())
	}
	main := `version = 4
imports = ["conf.d/*.toml"]
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`
	for name, s := range map[string]string{"config.toml": main, "conf.d/ballast.toml": b.String()} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := &config.Config{Version: 4, Plugins: map[string]any{}}
	if err := config.LoadConfig(t.Context(), filepath.Join(dir, "config.toml"), got); err != nil {
		t.Fatal(err)
	}
	return got
}

func lookup(m map[string]any, key string) any {
	var v any = m
	for k := range strings.SplitSeq(key, "/") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

// TestVersions reads the drop-ins for versions that this test cannot load. The end-to-end tests run
// with them.
func TestVersions(t *testing.T) {
	const old, images = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"
	for _, tt := range []struct {
		name string
		c    Containerd
		want map[string]any // by key; nil: must not be there
	}{
		{"1.7", Containerd{Version: containerdversion.Version{Major: 1, Minor: 7}}, map[string]any{
			"version": int64(2), "plugins/" + old: nil, "plugins/" + images: nil,
			"plugins/io.containerd.service.v1.diff-service/default": []any{Differ, "walking"},
		}},
		{"2.2", Containerd{Version: containerdversion.Version{Major: 2, Minor: 2}}, map[string]any{
			"version": int64(3), "plugins/" + images + "/snapshotter": Snapshotter,
		}},
		{"2.2, handler", Containerd{Version: containerdversion.Version{Major: 2, Minor: 2}, RuntimeHandler: "m"}, map[string]any{
			"plugins/" + images + "/runtime_platforms/m/snapshotter": Snapshotter, "plugins/" + images + "/snapshotter": nil,
		}},
		{"2.3, handler", Containerd{Version: containerdversion.Version{Major: 2, Minor: 3}, RuntimeHandler: "m"}, map[string]any{
			"plugins/" + images + "/runtime_platforms": nil,
		}},
		{"2.2 on format 2", Containerd{Version: containerdversion.Version{Major: 2, Minor: 2}, Main: containerdversion.File{Format: 2, OldTables: true}}, map[string]any{
			"version": int64(2), "plugins/" + images: nil,
			"plugins/" + old + "/containerd/snapshotter": Snapshotter, "plugins/" + old + "/registry/config_path": "/h",
		}},
		{"2.2 on format 2 with new tables", Containerd{Version: containerdversion.Version{Major: 2, Minor: 2}, Main: containerdversion.File{Format: 2}}, map[string]any{
			"version": int64(2), "plugins/" + old: nil, "plugins/" + images + "/snapshotter": Snapshotter,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.Address, tt.c.Root, tt.c.Platform, tt.c.HostsDir = "/a", "/r", "linux/amd64", "/h"
			var b strings.Builder
			if err := tt.c.Write(&b); err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := toml.Unmarshal([]byte(b.String()), &got); err != nil {
				t.Fatalf("%v in:\n%s", err, b.String())
			}
			for key, want := range tt.want {
				if diff := cmp.Diff(lookup(got, key), want); diff != "" {
					t.Errorf("%s (got, want):\n%s", key, diff)
				}
			}
		})
	}
}

// TestMergeByHand uncomments the part that a drop-in for 1.7 has for the main file.
func TestMergeByHand(t *testing.T) {
	var b strings.Builder
	c := Containerd{Address: "/a", Root: "/r", Platform: "linux/amd64", HostsDir: "/h", Version: containerdversion.Version{Major: 1, Minor: 7}, RuntimeHandler: "m", Handler: map[string]any{"runtime_type": "io.containerd.runc.v2", "options": map[string]any{"SystemdCgroup": true}}}
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	_, merge, _ := strings.Cut(b.String(), mergeByHand)
	var got map[string]any
	if err := toml.Unmarshal([]byte(strings.ReplaceAll("\n"+merge, "\n#", "\n")), &got); err != nil {
		t.Fatalf("%v in:\n%s", err, merge)
	}
	want := map[string]any{"plugins": map[string]any{"io.containerd.grpc.v1.cri": map[string]any{
		"registry": map[string]any{"config_path": "/h"},
		"containerd": map[string]any{"runtimes": map[string]any{"m": map[string]any{
			"runtime_type": "io.containerd.runc.v2", "snapshotter": Snapshotter, "options": map[string]any{"SystemdCgroup": true},
		}}},
	}}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(got, want):\n%s", diff)
	}
}

func TestContainerdRefuses(t *testing.T) {
	good := Containerd{Address: "/a", Root: "/r", HostsDir: "/h", Platform: "linux/amd64"}
	for name, change := range map[string]func(*Containerd){
		"relative root": func(c *Containerd) { c.Root = "r" },
		"quote in path": func(c *Containerd) { c.Address = "/a\"b" },
		"line in path":  func(c *Containerd) { c.HostsDir = "/h\n[x]" },
		"handler":       func(c *Containerd) { c.RuntimeHandler = "a]\n[b" },
		"too old":       func(c *Containerd) { c.Version = containerdversion.Version{Major: 1, Minor: 6} },
		"handler in old tables": func(c *Containerd) {
			c.Version, c.Main, c.RuntimeHandler = containerdversion.Version{Major: 2, Minor: 2}, containerdversion.File{Format: 2, OldTables: true}, "m"
		},
		"handler quotes": func(c *Containerd) { c.RuntimeHandler = `a"` },
	} {
		c := good
		change(&c)
		if err := c.Write(&strings.Builder{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v, want ErrInvalidArgument", name, err)
		}
	}
}

// TestHosts checks with containerd's own reader which hosts may resolve the tags of a registry.
func TestHosts(t *testing.T) {
	const facadeURL = "https://" + facade
	for _, tt := range []struct {
		name     string
		h        Hosts
		registry string
		resolve  []string
		pull     []string
		push     []string
	}{
		{"registry", Hosts{Registry: "ghcr.io"}, "ghcr.io",
			[]string{facadeURL}, []string{facadeURL, "https://ghcr.io"}, []string{"https://ghcr.io"}},
		{"docker hub", Hosts{Registry: "docker.io"}, "docker.io",
			[]string{facadeURL}, []string{facadeURL, "https://registry-1.docker.io"}, []string{"https://registry-1.docker.io"}},
		{"plain http", Hosts{Registry: "127.0.0.1:5001", PlainHTTP: true}, "127.0.0.1:5001",
			[]string{facadeURL}, []string{facadeURL, "http://127.0.0.1:5001"}, []string{"http://127.0.0.1:5001"}},
		{"all, closed", Hosts{Registry: DefaultRegistry}, "ghcr.io",
			[]string{facadeURL}, []string{facadeURL}, nil},
		{"all, open", Hosts{Registry: DefaultRegistry, Open: true}, "ghcr.io",
			[]string{facadeURL, "https://ghcr.io"}, []string{facadeURL, "https://ghcr.io"}, []string{"https://ghcr.io"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.h.Facade = facade
			root := t.TempDir()
			tt.h.CA, tt.h.Client = keyFiles(t, root)
			dir := filepath.Join(root, tt.h.Registry)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := os.Create(filepath.Join(dir, "hosts.toml"))
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.h.Write(f); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			all, err := hosts.ConfigureHosts(t.Context(), hosts.HostOptions{HostDir: hosts.HostDirFromRoot(root)})(tt.registry)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				name string
				has  docker.HostCapabilities
				want []string
			}{
				{"resolve", docker.HostCapabilityResolve, tt.resolve},
				{"pull", docker.HostCapabilityPull, tt.pull},
				{"push", docker.HostCapabilityPush, tt.push},
			} {
				var got []string
				for _, h := range all {
					if h.Capabilities.Has(c.has) {
						got = append(got, h.Scheme+"://"+h.Host)
					}
				}
				if diff := cmp.Diff(got, c.want); diff != "" {
					t.Errorf("%s (got, want):\n%s", c.name, diff)
				}
			}
			for _, h := range all {
				shown := h.Client.Transport.(*http.Transport).TLSClientConfig.Certificates
				if len(shown) > 0 != (h.Host == facade) {
					t.Errorf("%s is shown %d certificates", h.Host, len(shown))
				}
			}
		})
	}
}

// keyFiles creates the keys of a facade and returns the files of containerd.
func keyFiles(t *testing.T, root string) (ca, client string) {
	t.Helper()
	if _, err := facadetls.Open(root, facadetls.Options{}); err != nil {
		t.Fatal(err)
	}
	return facadetls.CAFile(root), facadetls.ClientFile(root)
}

func TestHostsRefuses(t *testing.T) {
	for _, h := range []Hosts{
		{Registry: ""}, {Registry: "a/b"}, {Registry: "../x"}, {Registry: "a\"b"}, {Registry: "ghcr.io", Open: true},
		{Registry: "ghcr.io", CA: "/ca"}, {Registry: "ghcr.io", CA: "/c\"a", Client: "/c"}, {Registry: "ghcr.io", CA: "ca", Client: "/c"},
	} {
		if err := h.Write(&strings.Builder{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: got %v, want ErrInvalidArgument", h, err)
		}
	}
}
