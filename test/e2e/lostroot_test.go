package e2e

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

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// TestLostMetadata removes the metadata of the snapshots while a container runs: the files of the container stay, and
// each of the commands that doctor prints makes that the model can be pulled again, which downloads nothing.
func TestLostMetadata(t *testing.T) {
	for _, by := range []string{"ctr", "verify"} {
		t.Run(by, func(t *testing.T) { lostMetadata(t, by) })
	}
}

func lostMetadata(t *testing.T, by string) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(71, 8<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	if out := n.Start("ballast", ref, "running"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	n.Ballastd.Stop(t)
	if err := os.Remove(filepath.Join(n.Root(), "metadata.db")); err != nil {
		t.Fatal(err)
	}
	n.StartBallastd(t)
	wantError(t, n.Ballast("verify"), "its metadata is lost")
	if out := n.Ballast("gc", "--yes"); out.Err != nil {
		t.Errorf("gc: %v: %s", out.Err, out.Output())
	}
	if _, err := os.Stat(object(n, digest.FromBytes(b.Files["model.gguf"].Data))); err != nil {
		t.Errorf("collected under a container: %v", err)
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
	hash := n.Exec("running", "/.bin/busybox", "sha256sum", "/model.gguf")
	if want := state(b.Files["model.gguf"]).SHA256; hash.Err != nil || !strings.HasPrefix(hash.Stdout, want) {
		t.Errorf("running container: got %v %s, want %s", hash.Err, hash.Output(), want)
	}
	wantError(t, doctor(n), "images rm --sync "+ref, "directories belong to no known snapshot", "ballast verify --repair")
	n.Ctr("tasks", "rm", "-f", "running")
	n.Ctr("containers", "rm", "running")
	if by == "ctr" {
		removeAndPull(t, n, ref, b)
	} else {
		n.Ballast("verify", "--repair") // what is left is checked below
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
	if out := doctor(n); out.Err != nil {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
}

// TestWipedRoot removes everything below the root while containerd has records of snapshots, some of them held by an image
// mount or a lease. ballastd makes it forget them, also if containerd starts later, so that images are unpacked again
// where they are used.
func TestWipedRoot(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(72, 1<<20)))
	ref := push(t, n, b)
	for _, containerd := range []string{"runs", "stopped"} {
		at := filepath.Join(n.Dir, containerd)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		mustPull(t, n, "ballast", ref)
		lease(t, n, topOf(t, n.Ctr), containerd)
		if out := n.Ctr("images", "mount", "--snapshotter", "ballast", ref, at); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
		unmountAll(t, n)
		n.Ballastd.Stop(t)
		if containerd == "stopped" {
			n.Containerd.Stop(t)
		}
		if err := os.RemoveAll(n.Root()); err != nil {
			t.Fatal(err)
		}
		n.StartBallastd(t)
		if containerd == "stopped" {
			time.Sleep(2 * time.Second) // the first attempt fails
			n.StartContainerd(t)
		}
		waitFor(t, "a pull", func() error {
			if out := n.Pull("ballast", ref); out.Err != nil {
				return fmt.Errorf("containerd %s: %w: %s", containerd, out.Err, out.Output())
			}
			return nil
		})
		wantFiles(t, n, ref, states(b))
		if out := doctor(n); out.Err != nil {
			t.Errorf("containerd %s: doctor: %v\n%s", containerd, out.Err, out.Output())
		}
	}
}

// unmountAll unmounts what is mounted below the root, and keeps containerd's records of it.
func unmountAll(t *testing.T, n *node.Node) {
	t.Helper()
	mounts, err := n.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m != filepath.Join(n.Root(), "lazy") {
			if err := unix.Unmount(m, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				t.Fatalf("%s: %v", m, err)
			}
		}
	}
}

// TestRecordsWithoutSnapshots replaces the root by an older copy while the lease of an image mount keeps containerd's
// records of the snapshots, also when the image is removed. containerd does not list them, and refuses to pull any
// model; the command that doctor prints ends that, also if the image stays, or a lease of a pull.
func TestRecordsWithoutSnapshots(t *testing.T) {
	for _, kept := range []string{"by the mount", "by the image", "by a lease"} {
		t.Run(kept, func(t *testing.T) { recordsWithoutSnapshots(t, kept) })
	}
}

func recordsWithoutSnapshots(t *testing.T, kept string) {
	n := node.StartNode(t, node.Options{})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	mustPull(t, n, "ballast", n.Registry.Ref("busybox", "1"))
	n.Ballastd.Stop(t)
	older := n.Root() + ".old"
	if out, err := exec.Command("cp", "-a", n.Root(), older).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.StartBallastd(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(76, 1<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	at := filepath.Join(n.Dir, "mounted")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if out := n.Ctr("images", "mount", "--snapshotter", "ballast", ref, at); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	above := topOf(t, n.Ctr)
	for _, key := range []string{"extract-0-x sha256:0", "extract-1-y sha256:1"} { // two pulls that were killed
		if out := n.Ctr("snapshots", "--snapshotter", "ballast", "prepare", key, above); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
	}
	if out := n.Ctr("snapshots", "--snapshotter", "ballast", "label", "extract-1-y sha256:1", "containerd.io/gc.root="); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	unmountAll(t, n)
	n.Ballastd.Stop(t)
	if err := errors.Join(os.RemoveAll(n.Root()), os.Rename(older, n.Root())); err != nil {
		t.Fatal(err)
	}
	n.StartBallastd(t)
	if kept == "by a lease" {
		lease(t, n, above, "pull")
	}
	if kept != "by the image" {
		if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
	}
	n.Collect() // forgets the second of the two, and not that its parent has it
	if kept != "by the image" {
		wantError(t, n.Pull("ballast", ref), "already exists")
	}
	wantError(t, doctor(n), "containerd has recorded", "ballast verify --repair")
	wantError(t, n.Ballast("verify"), "containerd has recorded", "ballast verify --repair")
	if out := n.Ballast("verify", "--repair"); out.Err != nil {
		t.Errorf("repair: %v: %s", out.Err, out.Output())
	}
	if out := doctor(n); out.Err != nil {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))

	// What a crash in the middle of a pull leaves is no loss.
	if out := n.Ctr("snapshots", "--snapshotter", "ballast", "prepare", "extract-1-x sha256:0"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	n.Ballastd.Stop(t)
	if err := os.RemoveAll(n.Root()); err != nil {
		t.Fatal(err)
	}
	n.StartBallastd(t)
	if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	if out := doctor(n); out.Err != nil {
		t.Errorf("doctor, with the record of an extraction: %v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", ref)
}

// lease keeps containerd's record of a snapshot, as the lease of a pull that was cut off does for a day.
func lease(t *testing.T, n *node.Node, key, id string) {
	t.Helper()
	if err := n.API("default", func(ctx context.Context, c grpc.ClientConnInterface) error {
		leases := leasesapi.NewLeasesClient(c)
		if _, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: id}); err != nil {
			return err
		}
		_, err := leases.AddResource(ctx, &leasesapi.AddResourceRequest{ID: id, Resource: &leasesapi.Resource{ID: key, Type: "snapshots/ballast"}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// topOf returns the name of a snapshot of a layer.
func topOf(t *testing.T, ctr func(...string) node.Result) string {
	t.Helper()
	for line := range strings.Lines(ctr("snapshots", "--snapshotter", "ballast", "ls").Stdout) {
		if key, _, _ := strings.Cut(line, " "); strings.HasPrefix(key, "sha256:") {
			return key
		}
	}
	t.Fatal("no layer has a snapshot")
	return ""
}

// TestCopiedRoot copies the root to another disk without extended attributes, as rsync -a does.
func TestCopiedRoot(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(73, 4<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	n.Ballastd.Stop(t)
	old := n.Root() + ".old"
	if err := os.Rename(n.Root(), old); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-r", "--preserve=mode,ownership,timestamps,links", old, n.Root()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.StartBallastd(t)
	wantFiles(t, n, ref, states(b))
	if out := n.Ballast("verify"); out.Err != nil {
		t.Errorf("verify: %v: %s", out.Err, out.Output())
	}
	// A single stub, while the daemon runs.
	stubs, err := filepath.Glob(filepath.Join(n.Root(), "snapshots/*/fs/model.gguf"))
	if err != nil || len(stubs) != 1 {
		t.Fatalf("stubs: %v, %v", stubs, err)
	}
	if err := unix.Removexattr(stubs[0], "trusted.overlay.metacopy"); err != nil {
		t.Fatal(err)
	}
	wantError(t, n.Ballast("verify"), "model.gguf", "ballast verify --repair")
	wantError(t, doctor(n), "model.gguf", "ballast verify --repair")
	if out := n.Ballast("verify", "--repair"); out.Err != nil {
		t.Errorf("repair: %v: %s", out.Err, out.Output())
	}
	wantFiles(t, n, ref, states(b))
}

// removeAndPull runs the commands that doctor prints.
func removeAndPull(t *testing.T, n *node.Node, ref string, b *converttest.Built) {
	t.Helper()
	if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
}
