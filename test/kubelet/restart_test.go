package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// The daemons of a node.
const (
	kubeletDaemon    = "kubelet"
	containerdDaemon = "containerd"
	ballastDaemon    = "ballastd"
)

// witness makes a pod's container end when it reads other bytes of its model than the first time, or an
// error.
func witness(p pod) pod {
	p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", `trap exit TERM
		first=$(sha256sum < /model/model.gguf) || exit 1
		while [ "$(sha256sum < /model/model.gguf)" = "$first" ]; do sleep 1; done; exit 2`}
	return p
}

// The daemons of a node are stopped and killed in every order, while pods run and one is being started,
// and start again in that order. Running pods can read complete models and an incomplete one; the other
// pod starts.
func TestRestarts(t *testing.T) {
	// Unread parts would take minutes.
	k := startNode(t, node.Options{Config: "[lazy]\nrate = \"128KiB\"\n"}, nil)
	complete := converttest.Ollama(converttest.Files(weights(50, 4<<20)), converttest.OllamaConfigNew)
	lazy := converttest.ModelPackRaw(converttest.Files(weights(51, 64<<20)))
	lazy.Name = "lazy"
	early := k.convert(t, push(t, k, lazy), "lazy")
	k.run(t, witness(k.pod("complete", push(t, k, complete), "IfNotPresent")))
	k.run(t, k.pod("lazy", early, "IfNotPresent"))
	before := map[string]string{}
	for _, name := range []string{"complete", "lazy"} {
		before[name] = k.container(t, name, "main")
	}

	orders := [][]string{
		{kubeletDaemon, containerdDaemon, ballastDaemon}, {containerdDaemon, ballastDaemon, kubeletDaemon},
		{ballastDaemon, kubeletDaemon, containerdDaemon}, {ballastDaemon, containerdDaemon, kubeletDaemon},
		{containerdDaemon, kubeletDaemon, ballastDaemon}, {kubeletDaemon, ballastDaemon, containerdDaemon},
	}
	made := map[string]*converttest.Built{}
	for i, order := range orders {
		b := converttest.ModelPackRaw(converttest.Files(weights(byte(60+i), 3<<20)))
		b.Name = fmt.Sprint("made", i)
		made[b.Name] = b
		d := digest.FromBytes(b.Files["model.gguf"].Data)
		remove := k.node.Registry.Wire.Add(node.Fault{Match: node.Blob(d), Rate: 128 << 10}) // 24 seconds
		p := k.pod(b.Name, push(t, k, b), "IfNotPresent")
		k.apply(t, p)
		k.awaitPulling(t, b.Name)
		// Each is stopped as often as it is killed, and is last as often as first.
		for j, daemon := range order {
			k.end(t, daemon, (i+j)%2 == 0)
		}
		remove()
		k.startAgain(t, order)
		k.awaitRunning(t, p)
		k.wantFiles(t, b.Name, "main", "/model", states(b))
		k.wantRead(t, "lazy", lazy, (i*9+8)<<20)
	}

	if done := k.node.Ballast("ls").Stdout; !strings.Contains(done, "lazy ") {
		t.Errorf("the model was complete too early; the test proves little:\n%s", done)
	}
	for name, id := range before {
		if now := k.container(t, name, "main"); now != id {
			t.Errorf("the container of pod %s was started again:\n%s", name, k.tell(t, name))
		}
	}
	k.wantFiles(t, "lazy", "main", "/model", states(lazy))
	k.wantFiles(t, "complete", "main", "/model", states(complete))
	for name, b := range made {
		k.wantFiles(t, name, "main", "/model", states(b))
	}
	k.removeLeases(t)
}

// end stops or kills a daemon.
func (k *kubelet) end(t *testing.T, daemon string, kill bool) {
	t.Helper()
	p := map[string]*node.Process{kubeletDaemon: k.process, containerdDaemon: k.node.Containerd, ballastDaemon: k.node.Ballastd}[daemon]
	if kill {
		p.Kill()
	} else {
		p.Stop(t)
	}
}

// startAgain starts the daemons in an order, but the kubelet after containerd: without containerd it
// ends at once, and its unit would restart it.
func (k *kubelet) startAgain(t *testing.T, order []string) {
	t.Helper()
	if i := slices.Index(order, kubeletDaemon); i < slices.Index(order, containerdDaemon) {
		order = append(slices.Delete(slices.Clone(order), i, i+1), kubeletDaemon)
	}
	for _, daemon := range order {
		switch daemon {
		case kubeletDaemon:
			k.start(t)
		case containerdDaemon:
			k.startContainerd(t)
		case ballastDaemon:
			k.startBallastd(t)
		}
	}
}

// wantRead reads a page of the weights of a model in a pod.
func (k *kubelet) wantRead(t *testing.T, pod string, b *converttest.Built, off int) {
	t.Helper()
	const page = 4096
	script := fmt.Sprintf("/bin/busybox dd if=/model/model.gguf bs=%d skip=%d count=1 2>/dev/null | /bin/busybox sha256sum", page, off/page)
	out, err := k.cri.Exec(k.container(t, pod, "main"), "/bin/busybox", "sh", "-c", script)
	if want := digest.FromBytes(b.Files["model.gguf"].Data[off:][:page]).Encoded(); err != nil || !strings.HasPrefix(out, want) {
		t.Errorf("page at %d in pod %s: got %q, %v, want %s", off, pod, out, err, want)
	}
}

// While ballastd is stopped, new pods wait, whatever they mount, and so do pods that are being removed.
// Running pods can read, and when the daemon is back everything continues without help.
func TestDaemonAway(t *testing.T) {
	k := startNode(t, node.Options{}, nil)
	b := converttest.ModelPackRaw(converttest.Files(weights(100, 4<<20)))
	ref := push(t, k, b)
	k.run(t, witness(k.pod("running", ref, "IfNotPresent")))
	k.run(t, k.pod("going", ref, "IfNotPresent"))
	k.node.Ballastd.Stop(t)

	coming := k.pod("coming", ref, "IfNotPresent")
	k.apply(t, coming)
	eventually(t, "event of the new pod", func() error {
		for _, e := range k.events(t, "coming") {
			if e.Reason == "FailedCreatePodSandBox" {
				wantMessage(t, e.Message, documented(t, "ballastd.sock"))
				return nil
			}
		}
		return fmt.Errorf("there is none:\n%s", k.tell(t, "coming"))
	})
	if err := os.Remove(filepath.Join(k.podsDir(), "going.json")); err != nil {
		t.Fatal(err)
	}
	k.wantFiles(t, "running", "main", "/model", states(b))

	k.startBallastd(t)
	k.awaitRunning(t, coming)
	k.awaitGone(t, "going")
	for _, name := range []string{"running", "coming"} {
		k.wantFiles(t, name, "main", "/model", states(b))
	}
}
