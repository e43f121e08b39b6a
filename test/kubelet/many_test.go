package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fifty pods use one model: it is once on the disk and once in memory. After the pods are removed,
// nothing of them is left.
func TestManyPods(t *testing.T) {
	const pods, size = 50, 16 << 20
	k := startNode(t, node.Options{}, map[string]any{"maxPods": pods + 1})
	b := converttest.ModelPackRaw(converttest.Files(weights(90, size)))
	ref := push(t, k, b)
	var all []pod
	var names []string
	for i := range pods {
		all = append(all, k.pod(fmt.Sprintf("many%02d", i), ref, "IfNotPresent"))
		names = append(names, all[i].Metadata.Name)
	}
	k.run(t, all[0])
	before := used(t, k.node.Root())
	k.apply(t, all[1:]...)
	for _, p := range all {
		k.awaitRunning(t, p)
	}
	if grown := used(t, k.node.Root()) - before; grown > size/2 {
		t.Errorf("%d more pods with a model of %d bytes take %d bytes more", pods-1, size, grown)
	}

	roots := k.roots(t)
	if len(roots) < pods {
		t.Fatalf("%d roots of %d containers", len(roots), pods)
	}
	eventually(t, "eviction from memory", func() error { // the kernel keeps pages that it is just using
		evict(t, k.object(b, "model.gguf"))
		return none("bytes", resident(t, filepath.Join(roots[0], "model/model.gguf")))
	})
	k.wantFiles(t, names[0], "main", "/model", states(b))
	for _, root := range roots { // the kernel may have evicted some of it meanwhile
		if n := resident(t, filepath.Join(root, "model/model.gguf")); n < size/2 {
			t.Errorf("one pod has read %d bytes, of which another finds %d in memory", size, n)
		}
	}
	for _, name := range names[pods-3:] {
		k.wantFiles(t, name, "main", "/model", states(b))
	}

	// A new kubelet removes dead containers at once, a running one every minute.
	k.remove(t, names...)
	k.process.Stop(t)
	k.start(t)
	eventually(t, "node without containers", k.nothing)
	if problems := k.leftovers(nil); len(problems) > 0 {
		t.Error(errors.Join(problems...))
	}
}

// nothing returns an error while there are pods or containers in any state.
func (k *kubelet) nothing() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	containers, err := k.cri.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	sandboxes, err := k.cri.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	return errors.Join(none("containers", len(containers.Containers)), none("sandboxes", len(sandboxes.Items)))
}

// roots returns the roots of the containers that have a model.
func (k *kubelet) roots(t *testing.T) (roots []string) {
	t.Helper()
	out := k.node.Ctr("-n", "k8s.io", "tasks", "ls")
	if out.Err != nil {
		t.Fatalf("ctr tasks ls: %v\n%s", out.Err, out.Output())
	}
	for line := range strings.Lines(out.Stdout) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] == "TASK" {
			continue
		}
		root := filepath.Join("/proc", f[1], "root")
		if _, err := os.Stat(filepath.Join(root, "model/model.gguf")); err == nil {
			roots = append(roots, root)
		}
	}
	return roots
}

// used returns the disk usage of a directory, in bytes.
func used(t *testing.T, dir string) (n int64) {
	t.Helper()
	out, err := exec.Command("du", "--one-file-system", "--summarize", "--block-size=1", dir).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &n)
	}
	if err != nil {
		t.Fatalf("du %s: %v", dir, err)
	}
	return n
}

// evict drops a file from the page cache.
func evict(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// resident returns the number of bytes of a file in the page cache.
func resident(t *testing.T, name string) (n int) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	page := os.Getpagesize()
	in := make([]byte, (len(p)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		t.Fatalf("mincore: %v", errno)
	}
	for _, v := range in {
		n += int(v&1) * page
	}
	return min(n, len(p))
}
