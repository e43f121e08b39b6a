package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// interrupted starts a command, interrupts it with SIGINT when ready, and returns its output.
func interrupted(t *testing.T, n *node.Node, ready func() error, argv ...string) node.Result {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), n.Env()...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer cmd.Process.Kill() // if ready fails
	waitFor(t, strings.Join(argv, " "), ready)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := <-done
	return node.Result{Stdout: stdout.String(), Stderr: stderr.String(), Err: err}
}

// TestAbandonedPull interrupts pulls of ctr. The downloads that continue are listed, also when their
// image was removed, and stopped by rm and gc.
func TestAbandonedPull(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[lazy]\nmode = \"complete\"\n[fetch]\nconnections = 2\n"})
	w := weights(79, 256<<20)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	n.Registry.Wire.Add(node.Fault{Match: node.Blob(digest.FromBytes(w)), Rate: 1 << 20})
	running := func(kind string) func() error {
		return func() error {
			if j, ok := workOf(t, n, kind); !ok || j.Ref != ref || j.Completed == 0 || !j.Ended.IsZero() {
				return fmt.Errorf("status:\n%s", ballast(t, n, "status"))
			}
			return nil
		}
	}
	pull := func(ready func() error) {
		t.Helper()
		interrupted(t, n, ready, n.Tool("ctr"), "-a", n.Socket(), "images", "pull", "--snapshotter", "ballast", "--hosts-dir", n.HostsDir(), ref)
		waitFor(t, "an abandoned download", running("abandoned"))
		if out := ballast(t, n, "ls"); !strings.Contains(out, ref) || !strings.Contains(out, "pulling") {
			t.Errorf("ls:\n%s", out)
		}
	}
	stopped := func(what string) {
		t.Helper()
		if out := ballast(t, n, "status"); !strings.Contains(out, "nothing is being downloaded") || !strings.Contains(out, "containerd "+ref+": its client has gone") {
			t.Errorf("status after %s:\n%s", what, out)
		}
		if out := ballast(t, n, "ls"); strings.Contains(out, "pulling") {
			t.Errorf("ls after %s:\n%s", what, out)
		}
	}
	remove := func() {
		t.Helper()
		if out := n.Ballast("rm", ref); out.Err != nil || !strings.Contains(out.Stderr, "1 download stopped") {
			t.Errorf("rm: %v\n%s", out.Err, out.Output())
		}
		stopped("rm")
	}

	pull(running("containerd"))
	if out := ballast(t, n, "status"); !strings.Contains(out, "no client waits for abandoned downloads; they stop in ") {
		t.Errorf("status:\n%s", out)
	}
	remove()

	pull(running("containerd"))
	if out := ballast(t, n, "gc", "--yes"); !strings.Contains(out, "stopped 1 download") {
		t.Errorf("gc:\n%s", out)
	}
	stopped("gc")

	pull(func() error { // its image is removed while the client waits
		if err := running("containerd")(); err != nil {
			return err
		}
		out := n.Ballast("rm", ref)
		if strings.Contains(out.Stderr, "stopped") {
			t.Errorf("rm stops what a client waits for:\n%s", out.Output())
		}
		return out.Err
	})
	remove()
}

// TestInterruptedList interrupts the prefetch of six models with SIGINT: the daemon downloads all.
func TestInterruptedList(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[fetch]\nconnections = 4\n"})
	var refs []string
	for i := range 6 {
		w := weights(byte(90+i), 8<<20)
		n.Registry.Wire.Add(node.Fault{Match: node.Blob(digest.FromBytes(w)), Rate: 1 << 20})
		ref := n.Registry.Ref(fmt.Sprint("team/list", i), "1")
		n.Registry.Push(t, fmt.Sprint("team/list", i), "1", artifact(converttest.ModelPackRaw(converttest.Files(w))))
		refs = append(refs, ref)
	}
	argv := append([]string{node.Binary(t, "ballast"), "--config", n.ConfigFile(), "prefetch"}, refs...)
	out := interrupted(t, n, func() error {
		if out := ballast(t, n, "status"); strings.Count(out, "prefetch") != 6 {
			return fmt.Errorf("status:\n%s", out)
		}
		return nil
	}, argv...)
	if want := "detached from " + strings.Join(refs, " ") + "; ballastd continues"; !strings.Contains(out.Stderr, want) {
		t.Errorf("got %v\n%s, want %q", out.Err, out.Stderr, want)
	}
	waitFor(t, "six complete models", func() error {
		out := ballast(t, n, "ls")
		if strings.Count(out, "complete, pinned") != 6 {
			return fmt.Errorf("ls:\n%s", out)
		}
		return nil
	})
}
