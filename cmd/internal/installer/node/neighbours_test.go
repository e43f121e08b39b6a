package node

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
)

// What the installers of other programs write.
const (
	// "snapshotter.sh deploy" appends the plugin to the main file, and changes settings in it.
	nydusMain = `version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".containerd]
discard_unpacked_layers = false
disable_snapshot_annotations = false
  snapshotter = "nydus"

    [proxy_plugins.nydus]
        type = "snapshot"
        address = "/run/containerd-nydus/containerd-nydus-grpc.sock"
`
	stargzMain = `version = 2
imports = ["/etc/containerd/conf.d/*.toml"]

# Enable stargz snapshotter for CRI
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "stargz"
  disable_snapshot_annotations = false

# Plug stargz snapshotter into containerd
[proxy_plugins]
  [proxy_plugins.stargz]
    type = "snapshot"
    address = "/run/containerd-stargz-grpc/containerd-stargz-grpc.sock"
`
	sociMain = `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[proxy_plugins.lazy]
type = "snapshot"
address = "/run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock"
[proxy_plugins.lazy.exports]
  root = "/var/lib/soci-snapshotter-grpc"
`
	builtInMain = `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "stargz"
`
	plainMain = "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"

	// nvidia-ctk-installer of the GPU operator, without and with --set-as-default.
	nvidiaDropIn = `version = 3

[plugins]

  [plugins."io.containerd.cri.v1.runtime"]

    [plugins."io.containerd.cri.v1.runtime".containerd]

      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes]

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
            SystemdCgroup = true

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia-cdi]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia-cdi.options]
            BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"
`

	dfinitHosts = `server = "https://index.docker.io"

[host."http://127.0.0.1:4001"]
capabilities = ["pull", "resolve"]

[host."http://127.0.0.1:4001".header]
X-Dragonfly-Registry = "https://index.docker.io"
`
	dfinitDefault = `[host."http://127.0.0.1:4001"]
capabilities = ["pull", "resolve"]
`
	spegelDefault = `[host.'http://10.0.0.7:30020']
capabilities = ['pull', 'resolve']
dial_timeout = '200ms'

[host.'http://10.0.0.7:30021']
capabilities = ['pull', 'resolve']
dial_timeout = '200ms'`

	// What "ballast setup" writes, as far as it matters here.
	ballastAll = `version = 3
[proxy_plugins.ballast]
  type = "snapshot"
  address = "/run/ballast/ballastd.sock"
[proxy_plugins.ballast-diff]
  type = "diff"
  address = "/run/ballast/ballastd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "ballast"
`
	ballastNobody  = "version = 3\n[proxy_plugins.ballast]\n  type = \"snapshot\"\n  address = \"/run/ballast/ballastd.sock\"\n"
	ballastHandler = ballastNobody + `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.ballast]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "ballast"
`
	ballastLikeNvidia = ballastHandler + `  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.ballast.options]
    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    SystemdCgroup = true
`
	ballastHosts = "server = \"https://ghcr.io\"\ncapabilities = [\"pull\", \"push\"]\n[host.\"https://127.0.0.1:5757\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
)

const (
	certs  = "/etc/containerd/certs.d/"
	dropIn = "/etc/containerd/conf.d/"
)

// TestNeighbours has nodes with other programs as their installers leave them, with and without
// ballast: one finding names each, with what matters for ballast.
func TestNeighbours(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string // beginning with its status
	}{
		"nobody": {map[string]string{mainFile: plainMain, dropIn + "ballast.toml": ballastAll, certs + "ghcr.io/hosts.toml": ballastHosts}, nil},
		"nydus": {map[string]string{mainFile: nydusMain, mainFile + ".bak.nydus": "version = 2\n"}, []string{
			"ok nydus (plugin nydus) is the snapshotter of all pods; ballast is that of no pod, only of ctr and nerdctl; removing nydus restores " + mainFile + ".bak.nydus, so run ballast setup after it",
		}},
		"nydus, and a handler of ballast": {map[string]string{mainFile: nydusMain, dropIn + "ballast.toml": ballastHandler}, []string{
			"ok nydus (plugin nydus) is the snapshotter of all pods but those of the runtime handler ballast; ballast is that of pods of the runtime handler ballast",
		}},
		"stargz, replaced by ballast": {map[string]string{mainFile: stargzMain, dropIn + "ballast.toml": ballastAll}, []string{
			"ok stargz (plugin stargz) is the snapshotter of no pod, only of ctr and nerdctl; ballast is that of all pods",
		}},
		"stargz, built in":                {map[string]string{mainFile: builtInMain}, []string{"ok stargz (plugin stargz) is the snapshotter of all pods;"}},
		"SOCI by another name":            {map[string]string{mainFile: sociMain, dropIn + "ballast.toml": ballastAll}, []string{"ok SOCI (plugin lazy) is the snapshotter of no pod"}},
		"unknown":                         {map[string]string{mainFile: plainMain + "[proxy_plugins.other]\ntype = \"snapshot\"\naddress = \"/run/other.sock\"\n"}, []string{"ok other (plugin other) is"}},
		"a differ, and content of others": {map[string]string{mainFile: plainMain + "[proxy_plugins.a]\ntype = \"diff\"\naddress = \"/run/a\"\n[proxy_plugins.b]\ntype = \"content\"\naddress = \"/run/b\"\n"}, nil},
		"ballast by another name":         {map[string]string{mainFile: plainMain, dropIn + "ballast.toml": strings.ReplaceAll(ballastHandler, "ballast]", "models]")}, nil},
		"Dragonfly": {map[string]string{mainFile: plainMain, certs + "docker.io/hosts.toml": dfinitHosts, certs + "_default/hosts.toml": dfinitDefault, certs + "ghcr.io/hosts.toml": ballastHosts}, []string{
			"ok Dragonfly's dfinit writes hosts.toml of _default, docker.io in /etc/containerd/certs.d at each start: models of these arrive unconverted.",
		}},
		"Spegel over ballast": {map[string]string{mainFile: plainMain, certs + "_default/hosts.toml": spegelDefault, certs + "_backup/ghcr.io/hosts.toml": ballastHosts}, []string{
			"warn Spegel replaces all of /etc/containerd/certs.d at each start, with the hosts.toml of ballast: models then arrive unconverted (fix: spegel.containerdMirrorAdd=false",
		}},
		"Spegel beside ballast": {map[string]string{mainFile: plainMain, certs + "_default/hosts.toml": spegelDefault, certs + "ghcr.io/hosts.toml": ballastHosts}, []string{
			"ok Spegel mirrors _default by hosts.toml in /etc/containerd/certs.d; it does not share models",
		}},
		"NVIDIA": {map[string]string{mainFile: plainMain, dropIn + "99-nvidia.toml": nvidiaDropIn}, []string{
			"ok NVIDIA's runtime is that of the handler nvidia, nvidia-cdi; its pods use overlayfs. For models on GPUs: ballast setup --runtime-handler ballast --like nvidia",
		}},
		"NVIDIA, ballast for all pods": {map[string]string{mainFile: plainMain, dropIn + "99-nvidia.toml": nvidiaDropIn, dropIn + "ballast.toml": ballastAll}, []string{
			"ok NVIDIA's runtime is that of the handler nvidia, nvidia-cdi; its pods use ballast as all pods do",
		}},
		"NVIDIA, a handler with runc": {map[string]string{mainFile: plainMain, dropIn + "99-nvidia.toml": nvidiaDropIn, dropIn + "ballast.toml": ballastHandler}, []string{
			"warn NVIDIA's runtime is that of the handler nvidia, nvidia-cdi, but not of ballast: pods of it see GPUs by CDI only (fix: ballast setup --runtime-handler ballast --like nvidia)",
		}},
		"NVIDIA, which is gone": {map[string]string{mainFile: plainMain, dropIn + "ballast.toml": ballastLikeNvidia}, []string{
			"warn NVIDIA's runtime is that of the handler ballast, and of no other handler any more: /usr/local/nvidia/toolkit/nvidia-container-runtime (fix: ballast setup --like default)",
		}},
		"NVIDIA, a handler like it": {map[string]string{mainFile: plainMain, dropIn + "99-nvidia.toml": nvidiaDropIn, dropIn + "ballast.toml": ballastLikeNvidia}, []string{
			"ok NVIDIA's runtime is that of the handler nvidia, nvidia-cdi, and of ballast: /usr/local/nvidia/toolkit/nvidia-container-runtime",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := files(t, tt.files)
			c, err := h.Load(t.Context(), mainFile, containerdversion.Newest, nil)
			if err != nil {
				t.Fatal(err)
			}
			k := &Checker{Host: h, Config: config.Default(), Unit: "containerd"}
			k.Check(c)
			var got []string
			for _, f := range k.Findings {
				if f.Check == CheckNeighbours {
					text := string(f.Status) + " " + f.Message
					if f.Fix != "" {
						text += " (fix: " + f.Fix + ")"
					}
					got = append(got, text)
				}
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got  %s\nwant %s", got[i], want)
				}
			}
		})
	}
}
