package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestReadAhead runs users of a complete model. The labels of a pod and of a container say that nothing is read
// ahead for them. For a container without a label, which reads a page, a process of ballastd reads the first two
// windows of 16 MiB ahead, and no more, because the container does not go on. The kernel may take pages back meanwhile.
func TestReadAhead(t *testing.T) {
	const window, label = 16 << 20, "ballast.dev/read-ahead"
	n, cri, busybox := startPods(t, node.Options{Config: "[snapshot]\nread_ahead = \"on\""})
	w := weights(36, 5*window)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	ballast(t, n, "prefetch", ref)
	mustPull(t, n, "ballast", ref)
	model, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(object(n, digest.FromBytes(w)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cached := func() int {
		size, err := node.Cached(f)
		if err != nil {
			t.Fatal(err)
		}
		return size
	}
	without := func(users int) {
		t.Helper()
		waitFor(t, "what the user wants to be known", func() error {
			log, err := os.ReadFile(n.Ballastd.Log)
			if got := strings.Count(string(log), "not read ahead for one of its users"); err != nil || got < users {
				return fmt.Errorf("%v: %d users", err, got)
			}
			return nil
		})
	}

	cri.Labels = map[string]string{label: "off"}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil || cached() > 0 {
		t.Fatalf("%v, %d bytes are in the page cache", err, cached())
	}
	if _, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"}); err != nil {
		t.Fatal(err)
	}
	without(1)
	run := func(name, value string) {
		t.Helper()
		if out := n.Ctr("run", "-d", "--label", label+"="+value, "--snapshotter", "ballast", "--mount", node.BusyboxMount,
			ref, name, "/.bin/busybox", "sleep", "100000"); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
	}
	readPage := func(name string) error {
		return n.Exec(name, "/.bin/busybox", "dd", "if=/model.gguf", "of=/dev/null", "bs=4096", "count=1").Err
	}
	run("quiet", "off")
	without(3) // it prepares its snapshot, and asks for its mounts
	for range 3 {
		if err := readPage("quiet"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if size := cached(); size > window {
		t.Errorf("%d bytes are in the page cache: it was read ahead", size)
	}
	run("loader", "")
	waitFor(t, "the model to be read ahead", func() error {
		err := readPage("loader") // again: the process may have started after the read
		if size := cached(); err != nil || size < window {
			return fmt.Errorf("%v: %d bytes are in the page cache", err, size)
		}
		return nil
	})
	time.Sleep(300 * time.Millisecond)
	if size := cached(); size > 2*window {
		t.Errorf("%d bytes are in the page cache, although nobody reads on", size)
	}
}
