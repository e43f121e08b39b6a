package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"golang.org/x/sys/unix"
)

// The network of the machines. The address of the API server is the first one of the services too, so there is no
// kube-proxy.
const (
	registriesAddress = "203.0.113.100"
	apiAddress        = "203.0.113.113"
	services          = "203.0.113.112/28"
)

// A machine is a node with a containerd and a kubelet, which run as services: namespaces with a network, a disk, and
// /etc, /usr/local, /var/lib and /var/log of its own.
type machine struct {
	name, address string
	number        int
	process       *exec.Cmd
	before        map[string]string // its files before it was a node
}

// machineArg makes the test program a machine.
const machineArg = "machine"

// runMachine makes what a machine has apart from others, and is its service manager until stdin ends.
func runMachine(dir, name string) error {
	for _, p := range []string{"/etc", "/usr/local"} {
		if err := node.Cover(dir, p); err != nil {
			return err
		}
	}
	if err := node.Disk(filepath.Join(dir, "disk"), 4<<30, "/var/lib", "loop,barrier=0,discard"); err != nil {
		return err
	}
	if err := node.Empty(dir, "/var/log"); err != nil {
		return err
	}
	if _, err := node.HideSysctls(dir); err != nil {
		return err
	}
	if err := errors.Join(
		unix.Sethostname([]byte(name)), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // as systemd does
		systemctl.Install(true),
	); err != nil {
		return err
	}
	stop, err := systemctl.Serve()
	if err != nil {
		return err
	}
	defer stop()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// containerdConfig is that of a machine. Files of setup are read beside it.
const containerdConfig = `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'registry.example/pause:1'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '/etc/containerd/certs.d'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true # for machines without CAP_SYS_RESOURCE
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/usr/lib/cni']
  conf_dir = '/etc/cni/net.d'
`

// startMachine starts the machine with a number, which joins the cluster.
func (c *site) startMachine(t *testing.T, number int) *machine {
	t.Helper()
	m := &machine{name: nodeOf(number), number: number, address: fmt.Sprintf("203.0.113.%d", 10+number)}
	dir := filepath.Join(c.dir, m.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.process = node.InNamespaces(machineArg, dir, m.name)
	m.process.Stderr = os.Stderr
	stdin, err := m.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := m.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.process.Start(); err != nil {
		t.Fatal(err)
	}
	c.whole.Cleanup(func() {
		m.stop(c.whole)
		stdin.Close()
		_ = m.process.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s: %v, %q", m.name, err, line)
	}
	device := "v" + m.name
	c.run(t, fmt.Sprintf("ip link add %[1]s type veth peer name eth0 netns %[2]d && ip link set %[1]s master br0 up && ip route add %[3]s via %[4]s",
		device, m.process.Process.Pid, m.pods(), m.address))
	m.write(t, "/etc/containerd/config.toml", containerdConfig)
	m.write(t, "/etc/cni/net.d/10-pods.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, m.pods()))
	m.write(t, "/etc/hosts", fmt.Sprintf("127.0.0.1 localhost %s\n%s %s\n", m.name, registriesAddress, strings.Join([]string{node.OllamaHost, node.BlobsHost, node.OtherHost, node.GithubHost}, " ")))
	m.write(t, "/etc/ssl/certs/ca-certificates.crt", string(c.registries.Authority))
	m.write(t, "/etc/kubernetes/resolv.conf", "")
	m.write(t, "/etc/kubernetes/kubelet.conf", c.Kubeconfig(apiAddress, "node-"+m.name))
	config, err := json.Marshal(node.KubeletConfig(map[string]any{
		"address":                  m.address,
		"registerWithTaints":       []map[string]string{{"key": taint, "effect": "NoSchedule"}},
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "resolvConf": "/etc/kubernetes/resolv.conf",
		"volumePluginDir": "/var/lib/kubelet/volumeplugins", "localStorageCapacityIsolation": false, "nodeStatusUpdateFrequency": "2s",
	}))
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "/etc/kubernetes/kubelet.json", string(config))
	containerd := node.Tool(t, "containerd")
	path := filepath.Dir(containerd) + ":" + filepath.Dir(node.Runc(t)) + ":" + os.Getenv("PATH")
	m.write(t, systemctl.Units+"/containerd.service", systemctl.Unit("containerd container runtime", containerd+" -c /etc/containerd/config.toml", path))
	m.write(t, systemctl.Units+"/kubelet.service", systemctl.Unit("kubelet", node.Kubernetes(t, "kubelet")+" --kubeconfig /etc/kubernetes/kubelet.conf --config /etc/kubernetes/kubelet.json --node-ip "+
		m.address+" --hostname-override "+m.name+" --node-labels example.com/gpu=true", path))
	m.write(t, "/usr/local/bin/ctr", "#!/bin/sh\nexec "+filepath.Join(filepath.Dir(containerd), "ctr")+" \"$@\"\n")
	m.sh(t, `ip addr add `+m.address+`/24 dev eth0
ip link set eth0 up
ip route add default via `+registriesAddress+`
chmod 755 /usr/local/bin/ctr
systemctl enable containerd kubelet
systemctl start containerd`)
	m.before = m.files(t)
	m.sh(t, "systemctl start kubelet")
	c.machines = append(c.machines, m)
	return m
}

func nodeOf(number int) string { return "n" + strconv.Itoa(number) }

// pods is the network of the pods of a machine.
func (m *machine) pods() string { return fmt.Sprintf("10.88.%d.0/24", m.number) }

// write writes a file of the machine.
func (m *machine) write(t *testing.T, p, text string) {
	t.Helper()
	p = filepath.Join("/proc", strconv.Itoa(m.process.Process.Pid), "root", p)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// try runs a script on the machine.
func (m *machine) try(script string) node.Result {
	argv := append([]string{"nsenter", "-t", strconv.Itoa(m.process.Process.Pid), "-m", "-n", "-p", "-u", "--wd=/"}, "sh", "-ec", script)
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return node.Command(context.Background(), env, argv...)
}

// sh is try that must succeed.
func (m *machine) sh(t *testing.T, script string) string {
	t.Helper()
	out := m.try(script)
	if out.Err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.name, script, out.Err, out.Output())
	}
	return out.Stdout
}

// stop ends the programs of a machine, so that no cgroup and no mount is left, and tells what it knows if the test
// has failed.
func (m *machine) stop(t *testing.T) {
	if t.Failed() {
		t.Logf("---- %s\n%s", m.name, m.try(`tail -n 15 /run/systemd/emulated/*.log; tail -n 5 /var/log/pods/*/*/*.log; df /var/lib || true`).Output())
	}
	// A task may end by itself before it is removed.
	out := m.try(`systemctl stop kubelet
for task in $(ctr -n k8s.io tasks ls -q); do
	ctr -n k8s.io tasks rm -f "$task" || ! ctr -n k8s.io tasks ls -q | grep -qx "$task"
done
ctr -n k8s.io containers ls -q | xargs -r -n 1 ctr -n k8s.io containers rm
systemctl stop containerd`)
	if out.Err != nil {
		t.Errorf("%s does not stop: %v\n%s", m.name, out.Err, out.Output())
	}
}

// files lists what a set-up may change, with modes, owners, links and digests.
func (m *machine) files(t *testing.T) map[string]string {
	t.Helper()
	const dirs = `/etc /usr/local /var/lib /run -xdev \( -path /var/lib/containerd -o -path /var/lib/kubelet -o -path /var/lib/cni -o -path /run/containerd -o -path /run/systemd -o -path /run/cni -o -path /run/netns \) -prune -o`
	return node.Tree(func(script string) string { return m.sh(t, script) }, dirs)
}

// leave takes the machine off the network.
func (c *site) leave(t *testing.T, m *machine) {
	t.Helper()
	c.run(t, "ip link set v"+m.name+" down")
	c.machines = slices.DeleteFunc(c.machines, func(other *machine) bool { return other == m })
}
