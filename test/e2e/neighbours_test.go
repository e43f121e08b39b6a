package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
)

// What installers of other programs leave in containerd's configuration: SOCI, and the toolkit of
// NVIDIA's GPU operator.
const neighbourConfig = `
imports = ["/etc/containerd/conf.d/*.toml"]
` + plainConfig + `
[proxy_plugins.soci]
type = "snapshot"
address = "/run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock"
[proxy_plugins.soci.exports]
  root = "/var/lib/soci-snapshotter-grpc"
`

const neighbourDropIn = `version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  privileged_without_host_devices = false
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
`

// TestNeighbours sets ballast up beside SOCI and NVIDIA's runtime, and then has Dragonfly's dfinit and Spegel take
// the hosts.toml of a closed registry: the plan and doctor name them, doctor sees that models bypass the
// facade, and setup closes the registry again.
func TestNeighbours(t *testing.T) {
	m := startMachine(t, neighbourConfig)
	m.write("/etc/containerd/conf.d/99-nvidia.toml", neighbourDropIn, 0o644)
	m.restartWith(neighbourConfig)
	b := converttest.ModelPackRaw(converttest.Files(weights(41, 1<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	model := m.registry.Ref("team/model", "v1")
	says := func(out string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	says(m.mustSetup("--registry", m.registry.Host, "--runtime-handler", "ballast", "--dry-run"),
		"note: SOCI (plugin soci) is the snapshotter of no pod", "note: NVIDIA's runtime is that of the handler nvidia, but not of ballast", "--like nvidia")
	says(m.mustSetup("--registry", m.registry.Host, "--runtime-handler", "ballast", "--like", "nvidia"),
		"note: NVIDIA's runtime is that of the handler nvidia, and of ballast: /usr/local/nvidia/toolkit/nvidia-container-runtime")
	out := m.ballast("doctor")
	if out.Err != nil {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
	says(out.Stdout, "OK    neighbours: SOCI (plugin soci)", "OK    neighbours: NVIDIA's runtime", "OK    hosts.toml: tags resolve only through the facade: "+m.registry.Host)
	m.checkSet(model, b)

	hosts := filepath.Join(machineHosts, m.registry.Host, "hosts.toml")
	ours, err := os.ReadFile(hosts)
	m.ok(err)
	m.write(hosts, "server = \"http://"+m.registry.Host+"\"\n\n[host.\"http://127.0.0.1:4001\"]\ncapabilities = [\"pull\", \"resolve\"]\n\n[host.\"http://127.0.0.1:4001\".header]\nX-Dragonfly-Registry = \"http://"+m.registry.Host+"\"\n", 0o644)
	out = m.ballast("doctor")
	if out.Err == nil {
		t.Error("doctor accepts that dfinit has replaced the hosts.toml")
	}
	says(out.Stdout, "neighbours: Dragonfly's dfinit writes hosts.toml of "+m.registry.Host, "FAIL  hosts.toml: "+hosts+" was replaced by Dragonfly", "ballast setup --force")
	m.mustSetup("--force")
	if now, err := os.ReadFile(hosts); err != nil || string(now) != string(ours) {
		t.Errorf("after the fix: %v\n%s", err, now)
	}

	m.ok(os.MkdirAll(filepath.Join(machineHosts, "_backup"), 0o755))
	m.ok(os.Rename(filepath.Dir(hosts), filepath.Join(machineHosts, "_backup", m.registry.Host)))
	m.write(filepath.Join(machineHosts, "_default", "hosts.toml"), "[host.'http://127.0.0.1:30020']\ncapabilities = ['pull', 'resolve']\ndial_timeout = '200ms'", 0o644)
	out = m.ballast("doctor")
	if out.Err == nil {
		t.Error("doctor accepts that Spegel has moved the hosts.toml")
	}
	says(out.Stdout, "WARN  neighbours: Spegel replaces all of "+machineHosts, "spegel.containerdMirrorAdd=false", "FAIL  hosts.toml: "+hosts+" was replaced by Spegel")
	m.ok(os.RemoveAll(machineHosts))
	out = m.ballast("doctor")
	says(out.Stdout, "FAIL  hosts.toml: "+hosts+" of ballast setup is gone", "fix: ballast doctor --fix")
	if out := m.ballast("doctor", "--fix"); out.Err != nil {
		t.Errorf("doctor --fix: %v\n%s", out.Err, out.Output())
	}
	m.checkSet(model, b)
}
