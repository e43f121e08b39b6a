package kubelet

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// nodeName is part of the names of the pods.
const nodeName = "node"

// A kubelet is a kubelet on a node.
type kubelet struct {
	node *node.Node
	cri  *node.CRI

	process *node.Process
	dir     string // its files
	address string
	config  map[string]any
	flags   []string
	client  *http.Client
	api     *apiServer // nil: pods are files

	cleanOnce sync.Once
}

// startNode starts a node with a kubelet; the clean-up removes all pods. config is added to the
// kubelet's configuration. prepare is called before the kubelet starts.
func startNode(t *testing.T, o node.Options, config map[string]any, prepare ...func(*testing.T, *kubelet)) *kubelet {
	t.Helper()
	n := node.StartNode(t, o)
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	k := &kubelet{node: n, cri: n.CRI(t), dir: filepath.Join(n.Dir, "kubelet"), address: node.FreeAddress(t)}
	k.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the kubelet makes its own key
	}}
	for _, dir := range []string{k.dir, k.podsDir(), filepath.Join(k.dir, "plugins")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	k.config = k.defaults(t)
	maps.Copy(k.config, config)
	for _, f := range prepare {
		f(t, k)
	}
	t.Cleanup(func() {
		// The kubelet mounts its directory over itself, to share mounts below it.
		if err := unix.Unmount(k.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v", k.dir, err)
		}
	})
	k.start(t)
	return k
}

// podsDir is the directory of the static pods.
func (k *kubelet) podsDir() string { return filepath.Join(k.dir, "manifests") }

// defaults is the configuration of a kubelet without an API server.
func (k *kubelet) defaults(t *testing.T) map[string]any {
	host, port, err := net.SplitHostPort(k.address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return node.KubeletConfig(map[string]any{
		"address": host, "port": number,
		"registerNode":             false,
		"containerRuntimeEndpoint": "unix://" + k.node.Socket(),
		"staticPodPath":            k.podsDir(), "fileCheckFrequency": "1s",
		"podLogsDir": filepath.Join(k.node.Dir, "logs"), "volumePluginDir": filepath.Join(k.dir, "plugins"),
		"serializeImagePulls": false, "registryPullQPS": 0, "eventRecordQPS": 0,
		// Events are logged from this verbosity on.
		"logging": map[string]any{"format": "json", "verbosity": 3},
	})
}

// start starts or restarts the kubelet and waits until it answers. A kubelet whose containerd has a socket but no
// CRI plugin yet ends at once, and its unit would restart it.
func (k *kubelet) start(t *testing.T) {
	t.Helper()
	k.node.Containerd.WaitReady(t, k.cri.Ready)
	p, err := json.Marshal(k.config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(k.dir, "config.yaml")
	if err := os.WriteFile(file, p, 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{node.Kubernetes(t, "kubelet"), "--config", file, "--root-dir", k.dir, "--cert-dir", filepath.Join(k.dir, "pki"),
		"--hostname-override", nodeName}, k.flags...)
	k.process = node.Start(t, "kubelet", k.log(), nil, argv...)
	k.process.WaitReady(t, func() error {
		var ignored json.RawMessage
		return k.get("/pods", &ignored)
	})
	k.cleanLater(t)
}

// startContainerd restarts containerd.
func (k *kubelet) startContainerd(t *testing.T) {
	t.Helper()
	k.node.StartContainerd(t)
	k.cleanLater(t)
}

// startBallastd restarts ballastd.
func (k *kubelet) startBallastd(t *testing.T) {
	t.Helper()
	k.node.LaunchBallastd(t)
	k.cleanLater(t)
}

// cleanLater registers clean after a daemon was started, so that it runs before the daemon is stopped.
// Only the first call has an effect.
func (k *kubelet) cleanLater(t *testing.T) {
	t.Cleanup(func() { k.cleanOnce.Do(func() { k.clean(t) }) })
}

func (k *kubelet) log() string { return filepath.Join(k.node.Dir, "kubelet.log") }

// get decodes a response of the kubelet's API.
func (k *kubelet) get(path string, v any) error {
	resp, err := k.client.Get("https://" + k.address + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("kubelet: GET %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// An event is an event of a pod.
type event struct {
	Type, Reason, Message string
}

// events returns the events of a pod, oldest first.
func (k *kubelet) events(t *testing.T, pod string) (all []event) {
	t.Helper()
	f, err := os.Open(k.log())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Msg    string
			Object struct{ Name string }
			event
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "Event occurred" && line.Object.Name == podName(pod) {
			all = append(all, line.event)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
