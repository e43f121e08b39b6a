package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

const (
	installPage = "contrib/docs/kubernetes-install.md"
	fleetPage   = "contrib/docs/fleet.md"

	timeout = "--timeout=9m" // of a command of kubectl, which may run as long as patience
)

// A site is a cluster of machines, with its registries and its administrator.
type site struct {
	*plane.Plane
	whole      *testing.T // at whose end everything ends that subtests start
	dir, tools string
	registries *node.Registries
	machines   []*machine
}

// startSite starts a cluster without machines. Its administrator has what a release has, and a checkout.
func startSite(t *testing.T) *site {
	t.Helper()
	contrib, err := filepath.Abs("../../contrib")
	if err != nil {
		t.Fatal(err)
	}
	c := &site{whole: t, dir: t.TempDir(), tools: filepath.Dir(node.Kubernetes(t, "kubectl"))}
	if err := os.Symlink(contrib, filepath.Join(c.dir, "contrib")); err != nil {
		t.Fatal(err)
	}
	c.run(t, fmt.Sprintf("ip link add br0 type bridge && ip addr add %s/24 dev br0 && ip addr add %s/24 dev br0 && ip link set br0 up", registriesAddress, apiAddress))
	c.registries = node.StartRegistries(t, filepath.Join(c.dir, "registry"), registriesAddress+":443")
	planeDir := filepath.Join(c.dir, "plane")
	if err := errors.Join(os.Mkdir(planeDir, 0o700), os.Mkdir(filepath.Join(c.dir, ".kube"), 0o700)); err != nil {
		t.Fatal(err)
	}
	c.Plane = plane.Start(t, planeDir, plane.Options{
		Tools: c.tools, Address: apiAddress, Services: services, Listen: apiAddress + ":443", Nodes: []string{nodeOf(1), nodeOf(2), nodeOf(3), nodeOf(4)}, Grace: 20 * time.Second,
	})
	if err := os.WriteFile(filepath.Join(c.dir, ".kube/config"), []byte(c.Kubeconfig(apiAddress, "admin")), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(t, "helm package contrib/helm/ballast && helm package contrib/helm/ballast --version 0.2.0 --app-version v0.2.0")
	return c
}

// env is the environment of the administrator.
func (c *site) env() []string {
	return []string{"HOME=" + c.dir, "PATH=" + c.tools + ":" + os.Getenv("PATH")}
}

// try runs a script of the administrator.
func (c *site) try(script string) node.Result {
	return node.Command(context.Background(), c.env(), "sh", "-ec", "cd "+c.dir+"\n"+script)
}

// run is try that must succeed.
func (c *site) run(t *testing.T, script string) string {
	t.Helper()
	out := c.try(script)
	if out.Err != nil {
		t.Fatalf("%s: %v\n%s", script, out.Err, out.Output())
	}
	return out.Stdout
}

// types types commands as they are in a page.
func (c *site) types(t *testing.T, commands ...string) {
	t.Helper()
	for _, command := range commands {
		t.Logf("$ %s\n%s", command, c.run(t, command+" 2>&1"))
	}
}

// says waits until the output of a command of the administrator is as wanted.
func (c *site) says(t *testing.T, command, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q from %s", want, command), func() error {
		if out := c.try(command); out.Err != nil || strings.TrimSpace(out.Stdout) != want {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
}

// join starts a machine, and waits until it is a node.
func (c *site) join(t *testing.T, number int) *machine {
	t.Helper()
	m := c.startMachine(t, number)
	c.says(t, "kubectl get node "+m.name+` -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'`, "True")
	return m
}

// on returns the machine of a pod.
func (c *site) on(t *testing.T, pod string) *machine {
	t.Helper()
	name := c.run(t, "kubectl get "+pod+" -o 'jsonpath={.spec.nodeName}{.items[0].spec.nodeName}'")
	i := slices.IndexFunc(c.machines, func(m *machine) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("%s is on node %q", pod, name)
	}
	return c.machines[i]
}

// TestInstall has a cluster of three kubelets, on which an administrator types the pages about the installation and
// about ModelSets as they are.
func TestInstall(t *testing.T) {
	c := startSite(t)
	llama := fmt.Sprintf("%x", sha256.Sum256(weights(1)))
	c.push(t)
	for number := range 3 {
		c.join(t, 1+number)
	}
	c.says(t, "kubectl get serviceaccount default -o name", "serviceaccount/default")
	for _, s := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"Helm, and the startup taint", c.installed},
		{"all pods without a handler", func(t *testing.T) { c.withoutHandler(t, llama) }},
		{"a pod with a model", func(t *testing.T) { c.podReads(t, llama) }},
		{"nodes with GPUs", func(t *testing.T) { c.gpus(t, llama) }},
		{"ModelSets", c.modelSets},
		{"the page", c.page},
		{"without ModelSets, and with them again", c.withoutSets},
		{"upgrade and rollback", func(t *testing.T) { c.upgraded(t, llama) }},
		{"no API server for a minute", func(t *testing.T) { c.aloneForAMinute(t, llama) }},
		{"a node with a full disk joins", c.joinsFull},
		{"a node dies", c.dies},
		{"helm uninstall", c.uninstalled},
	} {
		if !t.Run(s.name, s.do) {
			t.Fatal(c.try("kubectl get nodes,pods,modelsets,modelnodes -A -o wide; kubectl get events -A | tail -n 30").Output())
		}
	}
}

// push pushes the images of the pages and their models. Those of ghcr.io/team are private.
func (c *site) push(t *testing.T) {
	t.Helper()
	oci := c.registries.OCI
	oci.Push(t, "pause", "1", node.Busybox(t))
	oci.Push(t, "ggml-org/llama.cpp", "server", node.DigestServer(t))
	for tag, layout := range map[string]string{"v0.1.0": "one", "v0.2.0": "two"} {
		oci.Push(t, "ballast", tag, node.Layout(t, filepath.Join("../../bin/test", layout, "image"), "amd64"))
	}
	b := converttest.Ollama(converttest.Files(weights(1)), converttest.OllamaConfigNew)
	oci.Push(t, "library/llama3.2", "1b", node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
	private := node.StartRegistry(t, filepath.Join(c.dir, "private"))
	private.User, private.Password = "USER", "TOKEN" // as in the page
	push(t, private, "team/model", "v3", weights(2))
	c.registries.Github = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/v2/team/") {
			private.Wire.ServeHTTP(w, req)
		} else {
			oci.Wire.ServeHTTP(w, req)
		}
	})
}

// installed types the installation. A pod waits for the taint of the nodes.
func (c *site) installed(t *testing.T) {
	c.run(t, "kubectl run early --image=registry.example/pause:1")
	c.says(t, `kubectl get pod early -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}'`, "Unschedulable")
	c.types(t, node.Typed(t, installPage, "## Helm")...)
	c.ready(t)
	c.run(t, "kubectl wait --for=condition=Ready pod/early "+timeout+" && kubectl delete pod early --now")
}

// ready wants each node to say that it has ballast, and ballast to be well.
func (c *site) ready(t *testing.T) {
	t.Helper()
	var names []string
	for _, m := range c.machines {
		names = append(names, "node/"+m.name)
	}
	c.says(t, "kubectl get nodes -l ballast.dev/node=true -o name", strings.Join(names, "\n"))
	c.says(t, "kubectl get nodes -o 'jsonpath={.items[*].spec.taints[*].key}'", "")
	for _, m := range c.machines {
		eventually(t, "healthy node "+m.name, func() error {
			if out := m.try("ballast doctor"); out.Err != nil {
				return fmt.Errorf("%w: %s", out.Err, out.Output())
			}
			return nil
		})
	}
}

// withoutHandler types how ballast becomes the snapshotter of all pods, so that a pod needs no class and no annotation.
// Then one node loses all that ballast has, as if its disk was replaced, and starts without the registries.
func (c *site) withoutHandler(t *testing.T, llama string) {
	const (
		upgrade = "helm upgrade ballast ballast-0.1.0.tgz --namespace ballast-system --reuse-values --set "
		rollout = "kubectl -n ballast-system rollout status daemonset/ballast " + timeout
		started = "kubectl wait --for=condition=Ready pod/%s " + timeout
	)
	m := c.machines[1]
	ofNode := func(name string) string {
		return fmt.Sprintf(`sed '/runtimeClassName/d; /annotations:/d; /runtime-handler:/d; s/name: llama/name: %s/; s/^spec:/&\n  nodeName: %s/' contrib/kubernetes/pod.yaml`, name, m.name)
	}
	c.types(t, node.Typed(t, installPage, "### All pods without a handler")...)
	c.run(t, rollout)
	c.ready(t)
	c.run(t, ofNode("plain")+" | kubectl apply -f -")
	c.run(t, fmt.Sprintf(started, "plain"))
	c.says(t, "kubectl logs plain | cut -c -64", llama)

	m.sh(t, `systemctl stop kubelet
for task in $(ctr -n k8s.io tasks ls -q); do ctr -n k8s.io tasks rm -f "$task" || ! ctr -n k8s.io tasks ls -q | grep -qx "$task"; done
systemctl stop ballastd
systemctl stop containerd
umount -l $(awk '$2 ~ "^/var/lib/ballast/" {print $2}' /proc/mounts) || true
rm -rf /var/lib/ballast
ip route add blackhole `+registriesAddress+`
systemctl start ballastd
systemctl start containerd
systemctl start kubelet`)
	c.run(t, "kubectl run after --image=registry.example/pause:1 --image-pull-policy=IfNotPresent --overrides='"+`{"spec": {"nodeName": "`+m.name+`"}}'`)
	c.run(t, fmt.Sprintf(started, "after"))
	c.ready(t)
	m.sh(t, "ip route del blackhole "+registriesAddress)
	eventually(t, "the model to be there again", func() error {
		out := c.try("kubectl wait --for=condition=Ready pod/plain --timeout=1s && kubectl logs plain | cut -c -64")
		if out.Err != nil || !strings.Contains(out.Stdout, llama) {
			return fmt.Errorf("%w: %s\n%s", out.Err, out.Output(), c.try("kubectl get events | grep plain | tail -n 5").Output())
		}
		return nil
	})

	c.run(t, "kubectl delete pod plain after --now")
	c.run(t, upgrade+"runtimeHandler=ballast")
	c.run(t, rollout)
	c.ready(t)
}

// podReads applies the example of a pod.
func (c *site) podReads(t *testing.T, llama string) {
	c.types(t, "kubectl apply -f contrib/kubernetes/pod.yaml", "kubectl wait --for=condition=Ready pod/llama "+timeout)
	c.says(t, "kubectl logs llama | cut -c -64", llama)
}

// reads has the pod read its model again.
func (c *site) reads(t *testing.T, m *machine, llama string) {
	t.Helper()
	container := strings.TrimSpace(m.sh(t, `ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.name"==llama,labels."io.kubernetes.container.name"==server'`))
	out := m.sh(t, "ctr -n k8s.io tasks exec --exec-id read "+container+" sha256sum /models/llama/model.gguf")
	if !strings.HasPrefix(out, llama) {
		t.Errorf("the pod reads %q", out)
	}
}

// gpus types the value for nodes with GPUs. One node has a GPU; it waits for NVIDIA's handler, which the GPU operator adds
// later, and then its pods run with that runtime, and those of other nodes do not. The handler is removed again.
func (c *site) gpus(t *testing.T, llama string) {
	const (
		rollout = "kubectl -n ballast-system rollout status daemonset/ballast " + timeout
		dropIn  = "/etc/containerd/conf.d/99-nvidia.toml"
		config  = `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
    BinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'
`
	)
	gpu, other := c.machines[2], c.machines[0]
	gpu.sh(t, `mkdir -p /run/gpu/0000:00:1e.0
echo 0x10de >/run/gpu/0000:00:1e.0/vendor
echo 0x030200 >/run/gpu/0000:00:1e.0/class
mount --bind /run/gpu /sys/bus/pci/devices`)
	c.types(t, node.Typed(t, installPage, "### Nodes with GPUs")...)
	pod := "kubectl -n ballast-system get pod -l app.kubernetes.io/component=node --field-selector=spec.nodeName=" + gpu.name + " -o name"
	eventually(t, "the log of a node that waits", func() error {
		out := c.try("kubectl -n ballast-system logs $(" + pod + ") -c setup")
		if out.Err != nil || !strings.Contains(out.Output(), "containerd has no runtime handler nvidia yet") {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
	gpu.write(t, "/usr/local/nvidia/toolkit/nvidia-container-runtime", "#!/bin/sh\necho \"$@\" >>/run/gpu/calls\nexec "+node.Runc(t)+" \"$@\"\n")
	gpu.write(t, dropIn, config)
	gpu.sh(t, "chmod 755 /usr/local/nvidia/toolkit/nvidia-container-runtime && systemctl restart containerd")
	c.run(t, rollout)
	c.ready(t)
	for _, m := range []*machine{gpu, other} {
		name := "on-" + m.name
		c.run(t, fmt.Sprintf(`sed 's/name: llama/name: %s/; s/^spec:/&\n  nodeName: %s/' contrib/kubernetes/pod.yaml | kubectl apply -f -
kubectl wait --for=condition=Ready pod/%[1]s %[3]s`, name, m.name, timeout))
		c.says(t, "kubectl logs "+name+" | cut -c -64", llama)
		c.run(t, "kubectl delete pod "+name+" --now")
	}
	gpu.sh(t, "grep -q create /run/gpu/calls")
	if got := gpu.sh(t, "cat "+dropIn); got != config {
		t.Errorf("the drop-in of NVIDIA is now\n%s", got)
	}
	if got := other.sh(t, "cat /etc/containerd/conf.d/ballast.toml"); strings.Contains(got, "nvidia") {
		t.Errorf("a node without NVIDIA's handler has\n%s", got)
	}

	gpu.sh(t, "umount /sys/bus/pci/devices && rm -r /run/gpu /usr/local/nvidia "+dropIn+" && systemctl restart containerd")
	if out := gpu.try("ballast doctor"); !strings.Contains(out.Stdout, "of no other handler any more") {
		t.Errorf("ballast doctor does not warn:\n%s", out.Output())
	}
	c.types(t, "kubectl -n ballast-system rollout restart daemonset/ballast", rollout)
	if got := gpu.sh(t, "cat /etc/containerd/conf.d/ballast.toml"); strings.Contains(got, "nvidia") {
		t.Errorf("without NVIDIA's handler the node has\n%s", got)
	}
	c.ready(t)
}

// modelSets types the page about ModelSets.
func (c *site) modelSets(t *testing.T) {
	if n := node.Blocks(t, fleetPage); n != 4 {
		t.Fatalf("%s has %d blocks of commands", fleetPage, n)
	}
	c.types(t, node.Typed(t, fleetPage, "# Models on many nodes")...)
	c.types(t, node.Typed(t, fleetPage, "## Private models")...)
	c.run(t, "kubectl -n ballast-system rollout status daemonset/ballast deployment/ballast-fleet "+timeout)
	set := node.Block(t, fleetPage, "# Models on many nodes", "yaml")
	set = regexp.MustCompile(`deadline: ".*"`).ReplaceAllString(set, fmt.Sprintf("deadline: %q", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	if err := os.WriteFile(filepath.Join(c.dir, "set.yaml"), []byte(set), 0o644); err != nil {
		t.Fatal(err)
	}
	c.types(t, "kubectl apply -f set.yaml")
	commands := 0
	for _, l := range node.Lines(node.Block(t, fleetPage, "# Models on many nodes", "text")) {
		if command, ok := strings.CutPrefix(l, "$ "); ok {
			c.types(t, command)
			commands++
		}
	}
	if commands != 3 {
		t.Errorf("the page has %d commands", commands)
	}
	c.allReady(t)
}

// allReady wants all nodes to have all models of the set.
func (c *site) allReady(t *testing.T) {
	t.Helper()
	n := len(c.machines)
	c.says(t, "kubectl get modelset chat --no-headers | awk '{print $2, $3, $4, $5, $6, $7, $8}'", fmt.Sprintf("%d %[1]d 0 0 100 True Complete", n))
	c.says(t, "kubectl get nodes -l models.ballast.dev/chat=ready -o name | wc -l", fmt.Sprint(n))
}

// page forwards a port to the page of the controller.
func (c *site) page(t *testing.T) {
	command := node.Typed(t, fleetPage, "## The page")[0]
	forward := node.Keep(t, "port-forward", filepath.Join(c.dir, "forward.log"), c.env(), []int{1}, "sh", "-ec", "exec "+command)
	forward.WaitReady(t, func() error {
		resp, err := http.Get("http://127.0.0.1:8080")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		for _, want := range []string{"chat", "registry.ollama.ai/library/llama3.2:1b", "ghcr.io/team/model:v3", "n1", "n2", "n3"} {
			if err == nil && !strings.Contains(string(p), want) {
				err = fmt.Errorf("the page has no %s: %s", want, p)
			}
		}
		return err
	})
	c.types(t, node.OfAlerts(t, "kubectl")...)
}

// withoutSets types how ModelSets are turned off, which deletes none, and turns them on again.
func (c *site) withoutSets(t *testing.T) {
	rollout := "kubectl -n ballast-system rollout status daemonset/ballast " + timeout
	off := node.Typed(t, fleetPage, "## Without ModelSets again")[0]
	c.types(t, off)
	c.run(t, rollout)
	c.says(t, "kubectl get nodes --show-labels | grep models.ballast.dev || true", "")
	c.ready(t)
	for _, m := range c.machines {
		eventually(t, "no pins on "+m.name, func() error {
			if out := m.sh(t, "ballast pin ls -q"); strings.TrimSpace(out) != "" {
				return fmt.Errorf("pins %q", out)
			}
			return nil
		})
	}
	c.types(t, strings.Replace(off, "fleet.enabled=false", "fleet.enabled=true", 1))
	c.run(t, rollout)
	c.allReady(t)
}

// upgraded types the upgrade and the rollback, during which a pod reads.
func (c *site) upgraded(t *testing.T, llama string) {
	on := c.on(t, "pod llama")
	commands := node.Typed(t, installPage, "## Upgrade and rollback")
	if len(commands) != 2 {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	for i, want := range []string{"v0.1.0-two", "v0.1.0-one"} {
		c.types(t, commands[i], "kubectl -n ballast-system rollout status daemonset/ballast")
		for _, m := range c.machines {
			if got := m.sh(t, "ballast version"); !strings.Contains(got, want) {
				t.Errorf("%s: the version of %s is %s", commands[i], m.name, got)
			}
		}
		c.reads(t, on, llama)
		c.ready(t)
	}
	c.allReady(t)
}

// aloneForAMinute stops the API server.
func (c *site) aloneForAMinute(t *testing.T, llama string) {
	on := c.on(t, "pod llama")
	c.StopAPI(t)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Second) {
		c.reads(t, on, llama)
	}
	c.StartAPI(c.whole)
	c.ready(t)
	c.allReady(t)
	c.reads(t, on, llama)
}

// joinsFull has a node join whose disk has no space for models until somebody makes some.
func (c *site) joinsFull(t *testing.T) {
	m := c.join(t, 4)
	m.sh(t, `fallocate -l $(($(df --output=avail -B1 /var/lib | tail -n 1) - 1000000000)) /var/lib/containerd/other`) // 1 GiB stays free
	c.says(t, "kubectl get modelset chat --no-headers | awk '{print $2, $3, $4, $7, $8}'", "4 3 1 False Failed")
	if got := c.run(t, "kubectl get modelnode "+m.name+" -o 'jsonpath={.status.list[*].error}'"); !strings.Contains(got, "space") {
		t.Errorf("the node says %q", got)
	}
	m.sh(t, "rm /var/lib/containerd/other")
	c.allReady(t)
	c.ready(t)
}

// dies takes the node with the controller away.
func (c *site) dies(t *testing.T) {
	m := c.on(t, "pod -n ballast-system -l app.kubernetes.io/component=fleet")
	if m == c.on(t, "pod llama") {
		c.types(t, "kubectl delete pod llama") // the last step does without
	}
	c.leave(t, m)
	c.says(t, "kubectl get node "+m.name+` -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'`, "Unknown")
	c.types(t, "kubectl delete node "+m.name)
	c.says(t, "kubectl get pods -n ballast-system -l app.kubernetes.io/component=fleet --field-selector=status.phase=Running -o name | wc -l", "1")
	c.allReady(t)
}

// uninstalled types the removal. Nothing is left on the nodes or in the cluster.
func (c *site) uninstalled(t *testing.T) {
	c.types(t, "kubectl delete pod llama --ignore-not-found")
	c.types(t, node.Typed(t, installPage, "## Uninstall")...)
	c.says(t, "kubectl get modelsets -o name", "modelset.ballast.dev/chat")
	c.types(t, node.Typed(t, fleetPage, "## Without ModelSets again")[1])
	for _, m := range c.machines {
		if d := cmp.Diff(m.before, m.files(t)); d != "" {
			t.Errorf("left on %s (-before +after):\n%s", m.name, d)
		}
	}
	c.says(t, `kubectl get all,runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,crds -A -o name | grep ballast || true
kubectl get clusterroles,clusterrolebindings,leases -A -o name | grep ballast || true
kubectl get nodes --show-labels | grep ballast || true`, "")
}
