package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A lazyState is the state of an incomplete image in the output of ls.
type lazyState struct {
	Table            string
	State            string
	Total, Completed int64
	Paused           bool
	Snapshots        int
}

// lazyStateOf returns the state of the only image of a node.
func lazyStateOf(t *testing.T, n *node.Node) lazyState {
	t.Helper()
	var all []lazyState
	if err := json.Unmarshal([]byte(ballast(t, n, "ls", "-o", "json")), &all); err != nil || len(all) != 1 {
		t.Fatalf("ls: %d images, %v", len(all), err)
	}
	return all[0]
}

// TestPause pauses the download of a model that a container reads: reads continue, and the rest is
// not fetched until a command waits for it. The states show this.
func TestPause(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	m := &lazyModel{node: n, want: weights(126, 96<<20)}
	m.ref = convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(m.want)))
	pause(t, n)
	n.Registry.Wire.Link(40<<20, time.Millisecond)
	mustPull(t, n, "ballast", m.ref)
	m.path = filepath.Join(rootOf(t, n, m.ref), "model.gguf")
	for i := range 4 {
		if err := m.read(i*20<<20, 1<<20); err != nil {
			t.Errorf("read in the pause: %v", err)
		}
	}
	s := lazyStateOf(t, n)
	if s.State != "lazy" || !s.Paused || s.Snapshots == 0 || s.Completed < 4<<20 || s.Completed >= s.Total {
		t.Errorf("in the pause: %+v", s)
	}
	out := ballast(t, n, "ls")
	if !strings.Contains(out, "%, paused, in use") || !strings.Contains(out, "lazy ") {
		t.Errorf("ls in the pause:\n%s", out)
	}
	if out := ballast(t, n, "inspect", s.Table); !strings.Contains(out, "%, paused, in use") {
		t.Errorf("inspect in the pause:\n%s", out)
	}
	if out := doctor(n); !strings.Contains(out.Stdout, "fix: ballast resume") {
		t.Errorf("doctor in the pause:\n%s", out.Output())
	}
	if m.complete() {
		t.Error("the model was complete in the pause")
	}
	n.Registry.Wire.Link(0, 0)
	n.Registry.Wire.Reset()
	if out := ballast(t, n, "prefetch", "-o", "json", s.Table); !strings.Contains(out, `"status":"success"`) {
		t.Errorf("prefetch:\n%s", out)
	}
	if !m.complete() {
		t.Error("prefetch returned before the model was complete")
	}
	for _, r := range n.Registry.Wire.Requests() {
		if strings.Contains(r.Path, "/manifests/") {
			t.Errorf("a prefetch by digest asked for %s %s", r.Method, r.Path)
		}
	}
	if s := lazyStateOf(t, n); s.State != "complete" || s.Paused {
		t.Errorf("at the end: %+v", s)
	}
	resume(t, n)
	if err := m.read(0, len(m.want)); err != nil {
		t.Error(err)
	}
}

// TestResume resumes a paused download.
func TestResume(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	pause(t, n)
	m := mountLazy(t, n, 24<<20, 40<<20)
	if s := lazyStateOf(t, n); s.State != "lazy" || !s.Paused {
		t.Errorf("in the pause: %+v", s)
	}
	resume(t, n)
	m.awaitComplete(t)
}

// TestBallastdUnmount removes the lazy mount, which a daemon leaves for its successor.
func TestBallastdUnmount(t *testing.T) {
	for place, config := range lazyPlaces {
		t.Run(place, func(t *testing.T) { testBallastdUnmount(t, config) })
	}
}

// lazyPlaces are the configurations of the lazy mount, by where it is mounted.
var lazyPlaces = map[string]string{"below the root": "", "beside the sockets": "[lazy]\nidmap = false\n"}

func testBallastdUnmount(t *testing.T, config string) {
	n := node.StartNode(t, node.Options{Config: config})
	pause(t, n)
	m := mountLazy(t, n, 24<<20, 40<<20)
	unmount := func() node.Result {
		return node.Command(t.Context(), n.Env(), node.Binary(t, "ballastd"), "--config", n.ConfigFile(), "unmount")
	}
	wantError(t, unmount(), "ballastd is running, stop it first")
	if err := m.read(0, 4096); err != nil {
		t.Errorf("after an unmount that was refused: %v", err)
	}
	n.Ballastd.Stop(t)
	if dir := lazyDir(t, n); dir != "" {
		t.Errorf("%s is still mounted: who looks into it waits for the next daemon", dir)
	}
	n.StartBallastd(t)
	if lazyDir(t, n) == "" {
		t.Error("the next daemon has not mounted it again")
	}
	n.Ballastd.Kill()
	if lazyDir(t, n) == "" {
		t.Fatal("without a stop it is not hidden")
	}
	if out := unmount(); out.Err != nil || out.Stdout != "unmounted\n" {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	if dir := lazyDir(t, n); dir != "" {
		t.Errorf("%s is still mounted", dir)
	}
	waitFor(t, "the holder to end", func() error {
		if _, err := os.Stat(filepath.Join(n.Run(), "holder.sock")); err == nil {
			return fmt.Errorf("its socket is there")
		}
		return nil
	})
	if out := unmount(); out.Err != nil || out.Stdout != "nothing is mounted\n" {
		t.Errorf("again: %v\n%s", out.Err, out.Output())
	}
	n.StartBallastd(t)
	n.Registry.Wire.Link(0, 0)
	waitFor(t, "the model to be complete", func() error {
		if !m.complete() {
			return fmt.Errorf("it is not")
		}
		return nil
	})
}

// lazyDir returns the directory of the lazy mount of a node; "" if there is none.
func lazyDir(t *testing.T, n *node.Node) string {
	t.Helper()
	p, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(n.Root(), "lazy"), n.LazyApart()} {
		if strings.Contains(string(p), " "+dir+" ") {
			return dir
		}
	}
	return ""
}

// TestLazyRemounted unmounts the lazy mount while a container reads: the container keeps the old mount,
// and others get a new one.
func TestLazyRemounted(t *testing.T) {
	for place, config := range lazyPlaces {
		t.Run(place, func(t *testing.T) { testLazyRemounted(t, config) })
	}
}

func testLazyRemounted(t *testing.T, config string) {
	n := node.StartNode(t, node.Options{Config: config})
	pause(t, n)
	m := mountLazy(t, n, 64<<20, 40<<20)
	if err := m.read(0, 4096); err != nil {
		t.Fatal(err)
	}
	dir := lazyDir(t, n)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a new mount", func() error {
		if got := lazyDir(t, n); got != dir {
			return fmt.Errorf("it is at %q", got)
		}
		return nil
	})
	if !logged(t, n, "level=ERROR", "the lazy mount was unmounted") {
		t.Error("the log does not say so")
	}
	if err := m.read(60<<20, 4096); err != nil {
		t.Errorf("by the old mount: %v", err)
	}
	again := &lazyModel{node: n, want: m.want, path: filepath.Join(rootOf(t, n, m.ref), "model.gguf")}
	if err := again.read(50<<20, 4096); err != nil {
		t.Errorf("by the new mount: %v", err)
	}
	if m.complete() {
		t.Error("the model was complete too early, the reads proved little")
	}
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	if err := again.read(40<<20, 4096); err != nil {
		t.Errorf("by the new mount, after a restart: %v", err)
	}
	n.Registry.Wire.Link(0, 0)
	waitFor(t, "the model to be complete", func() error {
		if !m.complete() {
			return fmt.Errorf("it is not")
		}
		return nil
	})
}

// TestSharedChunks pulls a fine-tuned model whose base is on the node: shared chunks are not fetched.
func TestSharedChunks(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	base := weights(128, 24<<20)
	tuned := append(append([]byte{}, base[:16<<20]...), weights(129, 8<<20)...)
	d := digest.FromBytes(tuned)
	for i, p := range [][]byte{base, tuned} {
		n.Registry.Push(t, "models/src", fmt.Sprint(i), artifact(converttest.ModelPackRaw(converttest.Files(p))))
		ref := n.Registry.Ref("models/src", fmt.Sprint(i))
		ballast(t, n, "convert", ref, n.Registry.Ref("models/dst", fmt.Sprint(i)))
	}
	n.Registry.Wire.Reset()
	for i := range 2 {
		mustPull(t, n, "ballast", n.Registry.Ref("models/dst", fmt.Sprint(i)))
		waitFor(t, "all to be complete", func() error {
			if out := ballast(t, n, "ls"); strings.Contains(out, "lazy ") || strings.Contains(out, "partial") {
				return fmt.Errorf("ls:\n%s", out)
			}
			return nil
		})
	}
	if sent := n.Registry.Wire.BlobBytes()[d]; sent > 10<<20 {
		t.Errorf("%d bytes of the fine-tune were fetched", sent)
	}
	var all []struct{ Refs []string }
	if err := json.Unmarshal([]byte(ballast(t, n, "ls", "-o", "json")), &all); err != nil || len(all) != 2 {
		t.Fatalf("ls: %+v, %v", all, err)
	}
	var detail struct {
		Chunks struct{ Chunks, Bytes, Shared int64 }
	}
	ref := n.Registry.Ref("models/dst", "1")
	if err := json.Unmarshal([]byte(ballast(t, n, "inspect", "-o", "json", ref)), &detail); err != nil {
		t.Fatal(err)
	}
	if c := detail.Chunks; c.Chunks == 0 || c.Bytes < 24<<20 || c.Shared < 15<<20 || c.Shared >= c.Bytes {
		t.Errorf("got %+v", c)
	}
	if out := ballast(t, n, "inspect", ref); !strings.Contains(out, "are in other objects of this node too") {
		t.Errorf("inspect:\n%s", out)
	}
}
