package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// clean removes all pods, stops the kubelet, and checks that nothing of the pods is left on the node.
// Then it removes all images, and the store must be empty.
func (k *kubelet) clean(t *testing.T) {
	if files, err := filepath.Glob(filepath.Join(k.podsDir(), "*.json")); err != nil {
		t.Error(err)
	} else {
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
		}
	}
	if !k.process.Running() || !k.node.Containerd.Running() || !k.node.Ballastd.Running() {
		t.Error("a daemon does not run in the end")
		return
	}
	eventually(t, "node without pods", func() error {
		var list struct{ Items []pod }
		if err := k.get("/pods", &list); err != nil {
			return err
		}
		return none("pods", len(list.Items))
	})
	k.process.Stop(t)
	ids, err := k.removeSandboxes(cri.PodSandboxState_SANDBOX_NOTREADY, cri.PodSandboxState_SANDBOX_READY)
	if err != nil {
		t.Error(err)
	}
	if t.Failed() {
		return // what is left does not matter
	}
	eventually(t, "node as before", func() error { return errors.Join(k.leftovers(ids)...) })
	k.wantStoreEmpty(t)
}

// removeSandboxes removes the pods in some states, as the kubelet does a minute after they have ended.
// It returns the ids of all containers.
func (k *kubelet) removeSandboxes(states ...cri.PodSandboxState) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	containers, err := k.cri.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range containers.Containers {
		ids = append(ids, c.Id)
	}
	sandboxes, err := k.cri.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes.Items {
		ids = append(ids, s.Id)
		if !slices.Contains(states, s.State) {
			continue
		}
		_, serr := k.cri.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		_, rerr := k.cri.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		err = errors.Join(err, serr, rerr)
	}
	return ids, err
}

func none(what string, n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d %s are left", n, what)
}

// leftovers returns what is left of pods: mounts, snapshots that are not layers of images, cgroups of
// containers, and directories of image volumes.
func (k *kubelet) leftovers(ids []string) (problems []error) {
	n := k.node
	mounts, err := n.Mounts()
	if err != nil {
		return []error{err}
	}
	mounts = slices.DeleteFunc(mounts, func(m string) bool { return m == filepath.Join(n.Root(), "lazy") || m == k.dir })
	if len(mounts) > 0 {
		problems = append(problems, fmt.Errorf("mounts are left: %s", strings.Join(mounts, ", ")))
	}
	out := n.Ctr("-n", "k8s.io", "snapshots", "--snapshotter", "ballast", "ls")
	if out.Err != nil {
		problems = append(problems, out.Err)
	}
	for line := range strings.Lines(out.Stdout) {
		if f := strings.Fields(line); len(f) > 1 && f[0] != "KEY" && f[len(f)-1] != "Committed" {
			problems = append(problems, fmt.Errorf("a snapshot is left: %s", strings.TrimSpace(line)))
		}
	}
	volumes, err := filepath.Glob(filepath.Join(n.Dir, "state", "io.containerd.grpc.v1.cri", "image-volumes", "*"))
	if err != nil || len(volumes) > 0 {
		problems = append(problems, fmt.Errorf("directories of image volumes are left: %v, %v", volumes, err))
	}
	return append(problems, cgroups(ids)...)
}

// cgroups returns the cgroups that are left of containers.
func cgroups(ids []string) (problems []error) {
	err := filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(ids, d.Name()):
			problems = append(problems, fmt.Errorf("a control group is left: %s", p))
		}
		return nil
	})
	if err != nil {
		problems = append(problems, err)
	}
	return problems
}

// wantStoreEmpty removes all images, unpins what the test imported, and checks that the store is empty.
func (k *kubelet) wantStoreEmpty(t *testing.T) {
	t.Helper()
	n := k.node
	images := strings.Fields(n.Ctr("-n", "k8s.io", "images", "ls", "-q").Stdout)
	if len(images) == 0 {
		t.Error("containerd has no images; the test proves nothing")
		return
	}
	if out := n.Ctr(append([]string{"-n", "k8s.io", "images", "rm", "--sync"}, images...)...); out.Err != nil {
		t.Errorf("remove images: %v\n%s", out.Err, out.Output())
	}
	if models := strings.Fields(n.Ballast("ls", "-q", "--filter", "pinned=true").Stdout); len(models) > 0 {
		if out := n.Ballast(append([]string{"unpin"}, models...)...); out.Err != nil {
			t.Errorf("ballast unpin: %v\n%s", out.Err, out.Output())
		}
	}
	if out := n.Ballast("gc", "--yes"); out.Err != nil {
		t.Errorf("ballast gc: %v\n%s", out.Err, out.Output())
	}
	left, err := os.ReadDir(filepath.Join(n.Root(), "snapshots"))
	if err != nil || len(left) > 0 {
		t.Errorf("snapshots are left: %v, %v", left, err)
	}
	out := n.Ballast("df", "-o", "json")
	var df struct{ Logical int64 }
	if err := json.Unmarshal([]byte(out.Stdout), &df); out.Err != nil || err != nil {
		t.Errorf("ballast df: %v, %v\n%s", out.Err, err, out.Output())
	}
	if df.Logical != 0 {
		t.Errorf("models are left in the store: %s", out.Stdout)
	}
}

// removeLeases removes the leases of pulls during which containerd was killed; they expire after a day.
func (k *kubelet) removeLeases(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(k.node.Ctr("-n", "k8s.io", "leases", "ls").Stdout) {
		if f := strings.Fields(line); strings.Contains(line, "containerd.io/gc.expire=") {
			if out := k.node.Ctr("-n", "k8s.io", "leases", "rm", f[0]); out.Err != nil {
				t.Errorf("remove lease %s: %v\n%s", f[0], out.Err, out.Output())
			}
		}
	}
}
