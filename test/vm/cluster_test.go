//go:build vm

package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// clusterNode is Debian 13 with skopeo: the node of a cluster, and the machine of its administrator.
var clusterNode = kind{name: "cluster", distro: "Debian 13, Kubernetes"}

const (
	// apiAddress is where the machine has the API server. It is also the address of that service, so there is no
	// kube-proxy.
	apiAddress = "203.0.113.113"
	// nodeName is a name by which the API server, which is not in the machine, reaches the kubelet.
	nodeName = "localhost"
)

// TestCluster has a cluster of one node, on which the pages about installation are typed as they are. Its control
// plane is not in the machine, because it does not keep its time limits there.
func TestCluster(t *testing.T) {
	c := startControlPlane(t)
	k := clusterNode
	k.network = c.forwards()
	m := startNode(t, k, kernel13, newest(t), c.cargo(t))
	r := m.registries
	llama := r.pushOllama(t, "library/llama3.2", "1b", weights(1, 16<<20))
	r.OCI.Push(t, "ggml-org/llama.cpp", "server", node.DigestServer(t))
	m.sh(t, "echo "+registriesAddress+" "+node.GithubHost+" >>/etc/hosts")
	if !m.journey(t, "node of a cluster", m.join) {
		return
	}
	before := m.foreignFiles(t)
	const page = "contrib/docs/kubernetes-install.md"
	if n := node.Blocks(t, page); n != 9 {
		t.Errorf("%s has %d blocks of commands", page, n)
	}
	pod := func(t *testing.T) { m.podReads(t, llama) }

	m.journey(t, "the image", func(t *testing.T) {
		c := node.Typed(t, page, "## The image")
		if len(c) != 4 || c[1] != "make image" || !strings.HasPrefix(c[3], "docker buildx build ") {
			t.Fatalf("the page has other commands than this test knows: %q", c)
		}
		m.admin(t, c[0], c[2])
		m.admin(t, "skopeo copy --all oci:bin/image-next docker://registry.example/ballast:v0.2.0")
		// The charts of the two releases.
		m.admin(t, "helm package contrib/helm/ballast", "helm package contrib/helm/ballast --version 0.2.0 --app-version v0.2.0")
	})
	m.journey(t, "Helm", func(t *testing.T) {
		m.admin(t, node.Typed(t, page, "## Helm")...)
		m.ready(t)
	})
	m.journey(t, "pod with a model", pod)
	m.journey(t, "helm upgrade, helm rollback", func(t *testing.T) {
		c := node.Typed(t, page, "## Upgrade and rollback")
		if len(c) != 2 {
			t.Fatalf("the page has other commands than this test knows: %q", c)
		}
		for i, want := range []string{"v0.2.0", "v0.1.0"} {
			m.admin(t, c[i], "kubectl -n ballast-system rollout status daemonset/ballast")
			if got := m.sh(t, "/usr/local/bin/ballast version"); !strings.Contains(got, want) {
				t.Errorf("%s: the version is %s", c[i], got)
			}
			m.ready(t)
		}
		m.admin(t, "kubectl exec llama -- sha256sum /models/llama/model.gguf | grep "+llama.sum)
	})
	m.journey(t, "helm uninstall", func(t *testing.T) {
		c := node.Typed(t, page, "## Uninstall")
		m.sh(t, "systemd-run --quiet --unit uninstall.service -p WorkingDirectory="+download+" -E HOME=/root -E PATH=$PATH -p RemainAfterExit=yes "+strings.Join(c, ";"))
		eventually(t, "the removal to say which container it waits for", func() error {
			pod := strings.TrimSpace(m.try("kubectl -n ballast-system get pods -l app.kubernetes.io/component=remove -o name").Stdout)
			out := m.try("kubectl -n ballast-system logs " + pod + " -c remove") // as the page says
			if out.Err != nil || !strings.Contains(out.Stdout+out.Stderr, "k8s.io") {
				return fmt.Errorf("%w: %s", out.Err, out.Output())
			}
			t.Log(out.Output())
			return nil
		})
		m.admin(t, "kubectl delete pod llama")
		eventually(t, "end of helm uninstall", func() error {
			if s := m.sh(t, "systemctl show -P SubState uninstall.service"); s == "running\n" {
				return errors.New(s)
			}
			return nil
		})
		if s := m.sh(t, "systemctl show -P Result uninstall.service"); s != "success\n" {
			t.Errorf("helm uninstall: %s%s", s, m.sh(t, "journalctl -u uninstall -o cat --no-pager"))
		}
		m.gone(t, before)
		m.admin(t, "kubectl delete namespace ballast-system")
	})
	m.journey(t, "Kustomize", func(t *testing.T) {
		// The image of the project itself, which the objects name.
		m.admin(t, "skopeo copy --all oci:bin/image docker://ghcr.io/ballast-dev/ballast:v0.1.0")
		m.admin(t, node.Typed(t, page, "## Kustomize")...)
		m.admin(t, "kubectl -n ballast-system rollout status daemonset/ballast")
		m.ready(t)
		m.podReads(t, llama)
		m.admin(t, "kubectl delete pod llama")
		m.admin(t, node.Typed(t, page, "With Kustomize:")...)
		m.gone(t, before)
	})
	m.journey(t, "install.md, the other commands", func(t *testing.T) { m.installByHand(t, before, llama) })
}

// installByHand types the blocks of install.md that are not those of TestDebian12.
func (m *machine) installByHand(t *testing.T, before map[string]string, llama model) {
	t.Helper()
	const page = "contrib/docs/install.md"
	if n := node.Blocks(t, page); n != 9 {
		t.Errorf("%s has %d blocks of commands", page, n)
	}
	kubeadm := node.Typed(t, page, "### Plain, and kubeadm")
	m.admin(t, node.Typed(t, page, "Anywhere, use the tarball")[0], m.tarballOf(thisVersion)+"/"+kubeadm[0])
	for _, command := range kubeadm[1:] {
		m.admin(t, strings.ReplaceAll(command, "NODE", nodeName))
	}
	m.podReads(t, llama) // as the page says below
	m.admin(t, "kubectl delete pod llama")

	// The handler that nvidia-ctk adds, with a runtime of that name.
	m.sh(t, `mkdir -p /etc/containerd/conf.d
printf '#!/bin/sh\necho "$@" >>/run/nvidia.log\nexec runc "$@"\n' >/usr/local/bin/nvidia-container-runtime
chmod 755 /usr/local/bin/nvidia-container-runtime
cat >/etc/containerd/conf.d/99-nvidia.toml <<'END'
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
    BinaryName = '/usr/local/bin/nvidia-container-runtime'
    SystemdCgroup = true
END
systemctl restart containerd`)
	m.admin(t, node.Typed(t, page, "### GPU nodes")...)
	m.podReads(t, llama)
	m.sh(t, "grep -q create /run/nvidia.log")
	m.admin(t, "kubectl delete pod llama")
	// The kubelet removes the sandbox of a deleted pod later, which needs ballastd. Nobody types as fast as this test.
	m.sh(t, `timeout 180 sh -c 'while ctr -n k8s.io containers ls -q | grep -q .; do sleep 1; done'`)

	heal := node.Typed(t, page, "**To repair a node by hand**")
	checks := []string{
		"systemctl is-active ballastd.socket ballastd.service",
		"true",
		"grep 127.0.0.1 /etc/containerd/certs.d/registry.ollama.ai/hosts.toml && ! grep 127.0.0.1 /etc/containerd/certs.d/docker.io/hosts.toml",
		"test ! -e /usr/local/bin/ballast",
	}
	if len(heal) != len(checks) {
		t.Fatalf("the page has other commands than this test knows: %q", heal)
	}
	m.admin(t, "systemctl stop ballastd.socket ballastd.service")
	for i, command := range heal {
		m.admin(t, command)
		m.sh(t, checks[i])
	}
	m.sh(t, "kubectl delete runtimeclass ballast\nkubectl label node "+nodeName+" ballast.dev/node-\nrm -r /usr/local/bin/nvidia-container-runtime /etc/containerd/conf.d\nsystemctl restart containerd")
	m.gone(t, before)
}

// admin types commands in the directory with what the administrator has downloaded.
func (m *machine) admin(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		t.Logf("$ %s\n%s", c, m.sh(t, "cd "+download+"\n"+c+" 2>&1"))
	}
}

// ready checks that the node says that it has ballast.
func (m *machine) ready(t *testing.T) {
	t.Helper()
	eventually(t, "label of the node", func() error {
		out := m.try("kubectl get nodes -l ballast.dev/node=true -o name")
		if out.Stdout != "node/"+nodeName+"\n" {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
	m.answers(t)
	eventually(t, "healthy node", func() error {
		if out := m.try("ballast doctor"); out.Err != nil {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
}

// podReads applies the example of a pod, and wants its container to read the model.
func (m *machine) podReads(t *testing.T, want model) {
	t.Helper()
	m.admin(t, "kubectl apply -f contrib/kubernetes/pod.yaml")
	if out := m.try("kubectl wait --for=condition=Ready pod/llama --timeout=" + (patience / 2).String()); out.Err != nil {
		t.Fatalf("%v\n%s\n%s", out.Err, out.Output(), m.try("kubectl describe pod llama; kubectl get events -A; kubectl get nodes --show-labels; journalctl -u kubelet -u containerd --no-pager -o cat | tail -n 60").Output())
	}
	eventually(t, "digest of the model in the log of the pod", func() error {
		if out := m.try("kubectl logs llama"); !strings.HasPrefix(out.Stdout, want.sum) {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
}

// gone wants the node to be as it was before the installation.
func (m *machine) gone(t *testing.T, before map[string]string) {
	t.Helper()
	if d := cmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	// Pods that are deleted end some time later.
	eventually(t, "cluster without ballast", func() error {
		left := m.sh(t, "kubectl get all,runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings -A -o name | grep ballast || true\nkubectl get clusterroles,clusterrolebindings -o name | grep ballast || true\nkubectl get nodes --show-labels | grep ballast || true")
		if left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// A controlPlane is a control plane outside of the machine.
type controlPlane struct {
	*plane.Plane
	kubelet string // the port of the kubelet, here and in the machine
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	_, port, err := net.SplitHostPort(node.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return &controlPlane{plane.Start(t, t.TempDir(), plane.Options{
		Tools: filepath.Join(tools, "kubernetes"), Address: apiAddress, Services: "203.0.113.112/28", Nodes: []string{nodeName}, Grace: patience,
	}), port}
}

// cargo are the programs of a node and of an administrator, and what the latter has downloaded: the repository, with
// two images.
func (c *controlPlane) cargo(t *testing.T) cargo {
	t.Helper()
	files := cargo{
		"/root/.kube/config":      {text: c.Kubeconfig(apiAddress, "admin"), mode: 0o600},
		"/root/cluster/node.conf": {text: c.Kubeconfig(apiAddress, "node-"+nodeName), mode: 0o600},
		"/root/cluster/kubelet.yaml": {mode: 0o644, text: strings.NewReplacer("address: 127.0.0.1", "port: "+c.kubelet, "registerNode: false", "registerNode: true",
			"staticPodPath: /root/pods\n", "").Replace(kubeletConfig)},
		"/root/bin/image.tar":                 {from: image(t, "image.tar"), mode: 0o644},
		download + "/ballast_0.1.0_image.tar": {from: image(t, "image.tar"), mode: 0o644},
		"/root/bin/image-next.tar":            {from: image(t, "next/image.tar"), mode: 0o644},
	}
	files["/usr/local/bin/kubectl"] = load{from: filepath.Join(tools, "kubernetes/kubectl"), mode: 0o755}
	files["/usr/local/bin/helm"] = load{from: filepath.Join(tools, "kubernetes/helm"), mode: 0o755}
	maps.Copy(files, kubeletCargo())
	err := filepath.WalkDir("../../contrib", func(path string, d fs.DirEntry, err error) error {
		if rel, in := strings.CutPrefix(path, "../../"); in && err == nil && d.Type().IsRegular() {
			files[download+"/"+rel] = load{from: path, mode: 0o644}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// forwards are options of QEMU's network: the machine reaches the API server, and that the kubelet.
func (c *controlPlane) forwards() string {
	_, port, _ := net.SplitHostPort(c.Address)
	return fmt.Sprintf(",guestfwd=tcp:%s:443-cmd:%s nc 127.0.0.1 %s,hostfwd=tcp:127.0.0.1:%s-:%[4]s", apiAddress, node.BusyboxPath, port, c.kubelet)
}

// join starts a kubelet.
func (m *machine) join(t *testing.T) {
	t.Helper()
	m.sh(t, `mkdir `+download+`/bin
cd `+download+`/bin
for i in image image-next; do mkdir $i; tar -C $i -xf /root/bin/$i.tar; done
: >/root/resolv.conf
systemd-run --quiet --unit kubelet.service -p KillMode=process /root/kubelet --kubeconfig /root/cluster/node.conf --config /root/cluster/kubelet.yaml \
	--root-dir /root/kubelet.d --cert-dir /root/kubelet.d/pki --hostname-override `+nodeName+` --node-ip `+nodeAddress)
	eventually(t, "node", func() error {
		if out := m.try("kubectl wait --for=condition=Ready node/" + nodeName + " --timeout=1s && kubectl get serviceaccount default"); out.Err != nil {
			return fmt.Errorf("%w: %s; %s", out.Err, out.Output(), m.try("journalctl -u kubelet -n 5 -o cat --no-pager").Stdout)
		}
		return nil
	})
	t.Log(m.sh(t, "kubectl version; kubectl get nodes -o wide"))
}
