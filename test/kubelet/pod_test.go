package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patience is how long a test waits for a condition. The kubelet retries after 10 and 20 seconds.
const patience = 8 * time.Minute

// pause is the time between two checks of a condition.
const pause = 200 * time.Millisecond

// The fields of a pod that the tests use.
// https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
type (
	pod struct {
		APIVersion string    `json:"apiVersion"`
		Kind       string    `json:"kind"`
		Metadata   metadata  `json:"metadata"`
		Spec       podSpec   `json:"spec"`
		Status     podStatus `json:"status,omitzero"`
	}
	metadata struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels,omitempty"`

		Annotations map[string]string `json:"annotations,omitempty"`
	}
	podSpec struct {
		HostNetwork bool        `json:"hostNetwork"`
		Grace       int         `json:"terminationGracePeriodSeconds"`
		Containers  []container `json:"containers"`
		Volumes     []volume    `json:"volumes,omitempty"`

		Secrets []secretName `json:"imagePullSecrets,omitempty"`

		RuntimeClass string `json:"runtimeClassName,omitempty"`
	}
	secretName struct {
		Name string `json:"name"`
	}
	container struct {
		Name    string   `json:"name"`
		Image   string   `json:"image"`
		Policy  string   `json:"imagePullPolicy"`
		Command []string `json:"command,omitempty"`
		Mounts  []mount  `json:"volumeMounts,omitempty"`
	}
	mount struct {
		Volume   string `json:"name"`
		Path     string `json:"mountPath"`
		SubPath  string `json:"subPath,omitempty"`
		ReadOnly bool   `json:"readOnly,omitempty"`
	}
	volume struct {
		Name  string      `json:"name"`
		Image imageVolume `json:"image"`
	}
	imageVolume struct {
		Reference string `json:"reference"`
		Policy    string `json:"pullPolicy,omitempty"`
	}
	podStatus struct {
		Phase      string            `json:"phase"`
		Reason     string            `json:"reason"`
		Message    string            `json:"message"`
		Containers []containerStatus `json:"containerStatuses"`
	}
	containerStatus struct {
		Name     string `json:"name"`
		ID       string `json:"containerID"`
		Restarts int    `json:"restartCount"`
		State    struct {
			Waiting    *struct{ Reason, Message string } `json:"waiting"`
			Running    *struct{}                         `json:"running"`
			Terminated *struct{ Reason, Message string } `json:"terminated"`
		} `json:"state"`
	}
)

// podName is the name of a static pod.
func podName(name string) string { return name + "-" + nodeName }

// pod returns a pod with one container, "main", and a model at /model.
func (k *kubelet) pod(name, model, policy string) pod {
	return pod{
		APIVersion: "v1", Kind: "Pod", Metadata: metadata{Name: name, Namespace: "default"},
		Spec: podSpec{
			HostNetwork: true, Grace: 1,
			Containers: []container{{
				Name: "main", Image: k.node.Registry.Ref("busybox", "1"), Policy: "IfNotPresent",
				Mounts: []mount{{Volume: "model", Path: "/model"}},
			}},
			Volumes: []volume{{Name: "model", Image: imageVolume{Reference: model, Policy: policy}}},
		},
	}
}

// apply adds pods to the kubelet.
func (k *kubelet) apply(t *testing.T, pods ...pod) {
	t.Helper()
	for _, p := range pods {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(k.podsDir(), p.Metadata.Name+".json")
		half := filepath.Join(k.dir, p.Metadata.Name+".json")
		if err := os.WriteFile(half, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(half, file); err != nil {
			t.Fatal(err)
		}
	}
}

// run adds a pod and waits until all its containers run.
func (k *kubelet) run(t *testing.T, p pod) {
	t.Helper()
	k.apply(t, p)
	k.awaitRunning(t, p)
}

func (k *kubelet) awaitRunning(t *testing.T, p pod) {
	t.Helper()
	k.await(t, p.Metadata.Name, "all containers run", func(s podStatus) bool {
		n := 0
		for _, c := range s.Containers {
			if c.State.Running != nil {
				n++
			}
		}
		return n == len(p.Spec.Containers)
	})
}

// remove removes pods, and returns when they are gone.
func (k *kubelet) remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(k.podsDir(), name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		k.awaitGone(t, name)
	}
}

// awaitGone waits until the kubelet no longer has a pod, and its sandbox does not run.
func (k *kubelet) awaitGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, "end of pod "+name, func() error {
		if _, ok, err := k.status(name); err != nil || ok {
			return errors.Join(err, errors.New("it is there"))
		}
		return k.noContainers(name)
	})
}

// noContainers returns an error if containers of a pod run.
func (k *kubelet) noContainers(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := k.cri.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": podName(name)},
	}})
	if err == nil && len(resp.Items) > 0 {
		err = errors.New("its sandbox is ready")
	}
	return err
}

// status returns the status of a pod, and whether the kubelet has it.
func (k *kubelet) status(name string) (podStatus, bool, error) {
	var list struct{ Items []pod }
	var err error
	if k.api != nil { // then the kubelet reports there only
		list.Items, err = k.api.pods()
	} else {
		err = k.get("/pods", &list)
	}
	if err != nil {
		return podStatus{}, false, err
	}
	for _, p := range list.Items {
		if p.Metadata.Name == podName(name) {
			return p.Status, true, nil
		}
	}
	return podStatus{}, false, nil
}

// await waits until ok accepts the status of a pod.
func (k *kubelet) await(t *testing.T, name, what string, ok func(podStatus) bool) podStatus {
	t.Helper()
	var last podStatus
	for start := time.Now(); time.Since(start) < patience; time.Sleep(pause) {
		s, known, err := k.status(name)
		if err == nil && known && ok(s) {
			return s
		}
		last = s
	}
	t.Fatalf("pod %s: not so within %v: %s; its status:\n%s\nevents:\n%s", name, patience, what, describe(last), k.tell(t, name))
	return last
}

// awaitWaiting waits until the container "main" of a pod waits for one of the reasons, and returns the
// message.
func (k *kubelet) awaitWaiting(t *testing.T, name string, reasons ...string) string {
	t.Helper()
	s := k.await(t, name, fmt.Sprint("waits for ", reasons), func(s podStatus) bool {
		for _, r := range reasons {
			if len(s.Containers) > 0 && s.Containers[0].State.Waiting != nil && s.Containers[0].State.Waiting.Reason == r {
				return true
			}
		}
		return false
	})
	return s.Containers[0].State.Waiting.Message
}

func describe(s podStatus) string {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tell returns the events of a pod as text, each once.
func (k *kubelet) tell(t *testing.T, name string) string {
	t.Helper()
	var b strings.Builder
	seen := map[event]bool{}
	for _, e := range k.events(t, name) {
		if !seen[e] {
			fmt.Fprintf(&b, "%s %s: %s\n", e.Type, e.Reason, e.Message)
		}
		seen[e] = true
	}
	return b.String()
}

// container waits until a container of a pod is running, and returns its id. After its start the
// kubelet needs some time to know the containers.
func (k *kubelet) container(t *testing.T, pod, name string) (id string) {
	t.Helper()
	k.await(t, pod, "container "+name+" is running", func(s podStatus) bool {
		for _, c := range s.Containers {
			if c.Name == name && c.State.Running != nil {
				_, id, _ = strings.Cut(c.ID, "://")
				return true
			}
		}
		return false
	})
	return id
}

// wantFiles compares the regular files that a container sees below dir.
func (k *kubelet) wantFiles(t *testing.T, pod, container, dir string, want map[string]node.FileState) {
	t.Helper()
	got, err := k.cri.List(k.container(t, pod, container), dir)
	if err != nil {
		t.Errorf("%s in pod %s: %v", dir, pod, err)
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s in pod %s (-want +got):\n%s", dir, pod, d)
	}
}

// eventually waits until f returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < patience; time.Sleep(pause) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("no %s within %v: %v", what, patience, err)
}
