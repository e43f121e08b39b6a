package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// object returns the path of a file of a model in the store.
func (k *kubelet) object(b *converttest.Built, file string) string {
	d := digest.FromBytes(b.Files[file].Data)
	return filepath.Join(k.node.Root(), "objects", "sha256", d.Encoded()[:2], d.Encoded())
}

// images returns the names of the images that CRI lists.
func (k *kubelet) images(t *testing.T) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := k.cri.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range resp.Images {
		names = append(names, im.RepoTags...)
	}
	return names
}

// fill uses space until the given percentage of the disk is free, and returns a function that frees it.
func (k *kubelet) fill(t *testing.T, percent int64) (free func()) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(k.node.Dir, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(k.node.Dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := (int64(st.Bavail) - int64(st.Blocks)*percent/100) * st.Bsize
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatalf("take %d bytes: %v", size, err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// The disk fills up. The kubelet removes unused images; the objects of their models are gone when it
// measures the disk again, so it evicts no pods. The model of a running pod stays.
func TestImageGC(t *testing.T) {
	k := startNode(t, node.Options{Config: "[gc]\nhigh = \"60%\"\nlow = \"50%\"\n"}, map[string]any{
		"evictionHard":                map[string]string{"nodefs.available": "40%", "imagefs.available": "40%"},
		"imageMinimumGCAge":           "1s",
		"imageGCHighThresholdPercent": 60, "imageGCLowThresholdPercent": 50,
	})
	used, unused := converttest.ModelPackRaw(converttest.Files(weights(40, 16<<20))), converttest.ModelPackRaw(converttest.Files(weights(41, 256<<20)))
	used.Name, unused.Name = "used", "unused"
	k.run(t, k.pod("used", push(t, k, used), "IfNotPresent"))
	k.run(t, k.pod("unused", push(t, k, unused), "IfNotPresent"))
	k.remove(t, "unused")
	if _, err := os.Stat(k.object(unused, "model.gguf")); err != nil {
		t.Fatalf("a model stays while its image does: %v", err)
	}

	// The pod is gone, and the kubelet knows the image for more than a second, so its first reclaim
	// may remove it.
	k.process.Stop(t)
	eventually(t, "removal of the pod, which the kubelet may have begun", func() error {
		_, err := k.removeSandboxes(cri.PodSandboxState_SANDBOX_NOTREADY)
		return err
	})
	k.start(t)
	time.Sleep(5 * time.Second)

	defer k.fill(t, 35)()
	eventually(t, "collection of the unused image", func() error {
		if slices.Contains(k.images(t), k.node.Registry.Ref("models/unused", "1")) {
			return errors.New("it is there")
		}
		return nil
	})
	eventually(t, "end of the reclaim", func() error {
		if !k.logged(t, "Able to reduce resource pressure without evicting pods") {
			return errors.New("the kubelet does not say so")
		}
		return nil
	})
	if k.logged(t, "Must evict pod(s) to reclaim") {
		t.Error("the kubelet wanted to evict pods")
	}
	if _, err := os.Stat(k.object(unused, "model.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unused model is in the store: %v", err)
	}
	k.wantFiles(t, "used", "main", "/model", states(used))
	if s, _, err := k.status("used"); err != nil || s.Containers[0].Restarts != 0 {
		t.Errorf("the pod that uses a model was disturbed: %v\n%s", err, describe(s))
	}
}

// logged reports whether the log of the kubelet has a text.
func (k *kubelet) logged(t *testing.T, text string) bool {
	t.Helper()
	p, err := os.ReadFile(k.log())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(strings.ToLower(string(p)), strings.ToLower(text))
}
