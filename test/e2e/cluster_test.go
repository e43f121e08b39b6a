package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// A clusterNode is a machine with a kubelet, which runs the pods of the chart as static pods: as the
// chart renders them, without the parts that need an API server (the service account, the ConfigMap by
// its name).
type clusterNode struct {
	*machine
	dir      string         // of the kubelet, outside of the machine
	own      *node.Registry // with ballast's image
	kubelet  *node.Process
	address  string
	launches int
	client   http.Client
}

// startClusterNode makes a machine with a kubelet.
func startClusterNode(t *testing.T) *clusterNode {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // as systemd does
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Error(err)
		}
	})
	show, err := node.HideSysctls(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := show(); err != nil {
			t.Error(err)
		}
	})
	c := &clusterNode{machine: startMachine(t, plainConfig), address: node.FreeAddress(t)}
	c.dir, err = os.MkdirTemp("", "k")
	c.ok(err)
	t.Cleanup(func() { c.ok(os.RemoveAll(c.dir)) })
	c.ok(systemctl.Install(true))
	stop, err := systemctl.Serve()
	c.ok(err)
	t.Cleanup(stop)
	c.own = node.StartRegistry(t, filepath.Join(c.dir, "registry"))
	c.registry.Push(t, "busybox", "1", node.Busybox(t))
	c.own.Push(t, "pause", "1", node.Busybox(t))
	for _, args := range [][]string{
		{"pull", "--plain-http", c.own.Ref("pause", "1")},
		{"tag", c.own.Ref("pause", "1"), "registry.k8s.io/pause:3.10.2"}, // every node has this image before the first pod
	} {
		c.k8s(append([]string{"images"}, args...)...)
	}
	for _, tag := range []string{"one", "two"} {
		c.pushImage(tag)
	}
	c.startKubelet()
	return c
}

// k8s runs ctr in the namespace of Kubernetes, and fails the test on errors.
func (c *clusterNode) k8s(args ...string) string {
	c.t.Helper()
	out := c.ctr(append([]string{"-n", "k8s.io"}, args...)...)
	if out.Err != nil {
		c.t.Fatalf("ctr %v: %v\n%s", args, out.Err, out.Output())
	}
	return out.Stdout
}

// pushImage pushes an image that was built to the registry of the node.
func (c *clusterNode) pushImage(tag string) {
	c.t.Helper()
	dir := builtImage(c.t, tag)
	c.own.Push(c.t, "ballast", tag, node.Layout(c.t, dir, "amd64"))
}

// builtImage is the OCI layout of an image as built by make.
func builtImage(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../bin/test", name, "image"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("the image is not built; run `make test-images`: %v", err)
	}
	return p
}

// startKubelet starts the kubelet and waits until it answers.
func (c *clusterNode) startKubelet() {
	c.t.Helper()
	host, port, err := net.SplitHostPort(c.address)
	c.ok(err)
	number, err := strconv.Atoi(port)
	c.ok(err)
	for _, d := range []string{"pods", "plugins", "logs", "root"} {
		c.ok(os.Mkdir(filepath.Join(c.dir, d), 0o755))
	}
	config, err := json.Marshal(node.KubeletConfig(map[string]any{
		"address": host, "port": number,
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "registerNode": false,
		"staticPodPath": filepath.Join(c.dir, "pods"), "fileCheckFrequency": "1s",
		"podLogsDir": filepath.Join(c.dir, "logs"), "volumePluginDir": filepath.Join(c.dir, "plugins"),
		"localStorageCapacityIsolation": false,
	}))
	c.ok(err)
	file := filepath.Join(c.dir, "config.json")
	c.ok(os.WriteFile(file, config, 0o600))
	c.client = http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the kubelet makes its own key
	}}
	root := filepath.Join(c.dir, "root")
	c.t.Cleanup(func() {
		// The kubelet mounts its directory over itself, to share mounts below it.
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			c.t.Error(err)
		}
	})
	c.kubelet = node.Start(c.t, "kubelet", filepath.Join(c.dir, "kubelet.log"), nil, node.Kubernetes(c.t, "kubelet"),
		"--config", file, "--root-dir", root, "--cert-dir", filepath.Join(c.dir, "pki"), "--hostname-override", "node")
	c.kubelet.WaitReady(c.t, func() error { _, err := c.pods(); return err })
	c.t.Cleanup(c.removePods)
}

// A podStatus is what the kubelet knows of a pod.
type podStatus struct {
	Metadata struct{ Name, UID string }
	Status   struct {
		Phase                                    string
		Conditions                               []struct{ Type, Status string }
		InitContainerStatuses, ContainerStatuses []containerStatus
	}
}

type containerStatus struct {
	Name         string
	Ready        bool
	RestartCount int
	ContainerID  string
	State        map[string]struct {
		Reason, Message string
		ExitCode        int
	}
}

func (c *clusterNode) pods() ([]podStatus, error) {
	resp, err := c.client.Get("https://" + c.address + "/pods")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct{ Items []podStatus }
	return list.Items, json.NewDecoder(resp.Body).Decode(&list)
}

// pod returns the pod of a name, or nil.
func (c *clusterNode) pod(name string) *podStatus {
	c.t.Helper()
	all, err := c.pods()
	c.ok(err)
	for i := range all {
		if all[i].Metadata.Name == name+"-node" {
			return &all[i]
		}
	}
	return nil
}

func (p *podStatus) ready() bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True"
		}
	}
	return false
}

// apply runs the pod of a rendered DaemonSet, in place of the running one with the same name, and waits
// until it is ready.
func (c *clusterNode) apply(name string, values map[string]any) {
	c.t.Helper()
	c.launch(name, values)
	c.awaitReady(name)
}

func (c *clusterNode) awaitReady(name string) {
	c.t.Helper()
	c.await("pod "+name+" to be ready", func() error {
		p := c.pod(name)
		if p == nil || !p.ready() {
			return fmt.Errorf("%s", c.tell(p))
		}
		return nil
	})
}

// tell describes the problem of a pod.
func (c *clusterNode) tell(p *podStatus) string {
	if p == nil {
		return "no pod"
	}
	var b strings.Builder
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		fmt.Fprintf(&b, "%s: ready %t, %d restarts, %+v\n", s.Name, s.Ready, s.RestartCount, s.State)
	}
	return b.String()
}

// launch is apply that waits only for the end of the previous pod.
func (c *clusterNode) launch(name string, values map[string]any) {
	c.t.Helper()
	c.stopPod(name)
	c.launches++
	p, err := json.Marshal(c.static(name, values))
	c.ok(err)
	c.ok(os.WriteFile(c.manifest(name), p, 0o600))
}

func (c *clusterNode) manifest(name string) string { return filepath.Join(c.dir, "pods", name+".json") }

// stopPod removes a pod, and waits until it is gone.
func (c *clusterNode) stopPod(name string) {
	c.t.Helper()
	if err := os.Remove(c.manifest(name)); errors.Is(err, fs.ErrNotExist) {
		return
	}
	c.await("pod "+name+" to be gone", func() error {
		if p := c.pod(name); p != nil {
			return errors.New("it is there")
		}
		ids := strings.Fields(c.k8s("containers", "ls", "-q", fmt.Sprintf("labels.\"io.kubernetes.pod.name\"==%s-node", name)))
		for _, id := range strings.Fields(c.k8s("tasks", "ls", "-q")) {
			if slices.Contains(ids, id) {
				return fmt.Errorf("container %s runs", id)
			}
		}
		return nil
	})
}

// removePods removes the pods that are left at the end of a test.
func (c *clusterNode) removePods() {
	files, err := filepath.Glob(c.manifest("*"))
	c.ok(err)
	for _, f := range files {
		c.stopPod(strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	c.kubelet.Stop(c.t)
	for _, id := range strings.Fields(c.ctr("-n", "k8s.io", "tasks", "ls", "-q").Stdout) {
		c.ctr("-n", "k8s.io", "tasks", "rm", "-f", id) // sandboxes
	}
}

// await waits until done returns nil, for at most patience.
func (c *clusterNode) await(what string, done func() error) {
	c.t.Helper()
	begin := time.Now()
	defer func() { c.t.Logf("waited %v for %s", time.Since(begin).Round(100*time.Millisecond), what) }()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	c.t.Fatalf("waiting for %s: %v\n%s", what, err, c.logs())
}

// logs returns the ends of the logs of all containers.
func (c *clusterNode) logs() string {
	files, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*", "*", "*.log"))
	var b strings.Builder
	for _, f := range files {
		p, err := os.ReadFile(f)
		if err == nil {
			fmt.Fprintf(&b, "---- %s\n%s\n", strings.TrimPrefix(f, c.dir), p[max(0, len(p)-3000):])
		}
	}
	return b.String()
}

// rendered returns the objects of the chart by kind and name.
func (c *clusterNode) rendered(values map[string]any) map[string]map[string]any {
	c.t.Helper()
	all := map[string]any{
		"image":  map[string]any{"registry": c.own.Host, "repository": "ballast", "tag": "one"},
		"node":   map[string]any{"mark": false}, // there is no API server
		"distro": "plain", "registries": []string{c.registry.Host, "docker.io"},
	}
	maps.Copy(all, values)
	p, err := json.Marshal(all)
	c.ok(err)
	out := node.Command(context.Background(), nil, "../../bin/test/render", "../../contrib/helm/ballast", string(p))
	if out.Err != nil {
		c.t.Fatalf("render (run `make test-images`): %v\n%s", out.Err, out.Output())
	}
	objects := map[string]map[string]any{}
	dec := yaml.NewDecoder(strings.NewReader(out.Stdout))
	for {
		var o map[string]any
		err := dec.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		c.ok(err)
		if o != nil {
			objects[fmt.Sprintf("%v/%v", o["kind"], o["metadata"].(map[string]any)["name"])] = o
		}
	}
}

// static returns the pod of a DaemonSet of the chart for a kubelet without an API server.
func (c *clusterNode) static(name string, values map[string]any) map[string]any {
	c.t.Helper()
	objects := c.rendered(values)
	set := objects["DaemonSet/"+name]
	if set == nil {
		c.t.Fatalf("there is no DaemonSet %s among %v", name, slices.Sorted(maps.Keys(objects)))
	}
	template := set["spec"].(map[string]any)["template"].(map[string]any)
	spec := template["spec"].(map[string]any)
	delete(spec, "serviceAccountName")
	delete(spec, "priorityClassName")
	for _, v := range spec["volumes"].([]any) {
		v := v.(map[string]any)
		if v["name"] == "settings" { // as the kubelet would write it
			delete(v, "configMap")
			dir := filepath.Join(c.dir, fmt.Sprintf("settings%d", c.launches))
			c.ok(os.Mkdir(dir, 0o755))
			for file, text := range objects["ConfigMap/ballast"]["data"].(map[string]any) {
				c.ok(os.WriteFile(filepath.Join(dir, file), []byte(text.(string)), 0o644))
			}
			v["hostPath"] = map[string]any{"path": dir, "type": "Directory"}
		}
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": spec,
		"metadata": map[string]any{"name": name, "namespace": "ballast-system", "annotations": map[string]any{"launch": strconv.Itoa(c.launches)}},
	}
}
