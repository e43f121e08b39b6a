package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A lazyModel is a model of one large file, mounted before it is complete.
type lazyModel struct {
	node *node.Node
	ref  string
	want []byte
	path string // of the file, through the root of a container

	copyOfWant string // a file with want, for other processes
}

// mountLazy converts a model of the given size, and mounts it while the link has the given rate, in
// bytes a second; 0 is no limit.
func mountLazy(t *testing.T, n *node.Node, size int, rate int64) *lazyModel {
	t.Helper()
	m := &lazyModel{node: n, want: weights(121, size)}
	m.ref = convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(m.want)))
	n.Registry.Wire.Link(rate, 5*time.Millisecond)
	mustPull(t, n, "ballast", m.ref)
	m.path = filepath.Join(rootOf(t, n, m.ref), "model.gguf")
	return m
}

// read compares n bytes at off.
func (m *lazyModel) read(off, n int) error {
	f, err := os.Open(m.path)
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, n)
	if _, err := f.ReadAt(p, int64(off)); err != nil {
		return err
	}
	if !bytes.Equal(p, m.want[off:off+n]) {
		return fmt.Errorf("%d bytes at %d are wrong", n, off)
	}
	return nil
}

func (m *lazyModel) complete() bool { return complete(m.node, m.want) }

// awaitComplete waits until the model is complete, and reads all of it through the earlier mount.
func (m *lazyModel) awaitComplete(t *testing.T) {
	t.Helper()
	m.node.Registry.Wire.Link(0, 0)
	waitFor(t, "the model to be complete", func() error {
		if !m.complete() {
			return errors.New("it is not")
		}
		return nil
	})
	if err := m.read(0, len(m.want)); err != nil {
		t.Errorf("complete file through the old mount: %v", err)
	}
}

// readAll reads the whole model, which loads what slowBackground would take minutes for, and waits
// until it is complete.
func (m *lazyModel) readAll(t *testing.T) {
	t.Helper()
	m.node.Registry.Wire.Link(0, 0)
	if err := m.read(0, len(m.want)); err != nil {
		t.Errorf("whole file: %v", err)
	}
	m.awaitComplete(t)
}

// logged reports whether the daemon's log has a line with all of these words.
func logged(t *testing.T, n *node.Node, words ...string) bool {
	t.Helper()
	b, err := os.ReadFile(n.Ballastd.Log)
	if err != nil {
		t.Fatal(err)
	}
next:
	for line := range strings.Lines(string(b)) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		return true
	}
	return false
}

// The daemon is killed many times while readers compare bytes, by read and by page fault: they wait for
// the next daemon and never get an error. At the end there are two restarts in a row.
func TestLazyKilled(t *testing.T) {
	const kills, fewest, readers = 50, 10, 8
	n := node.StartNode(t, node.Options{})
	m := mountLazy(t, n, 320<<20, 8<<20)
	m.copyOfWant = filepath.Join(n.Dir, "want")
	if err := os.WriteFile(m.copyOfWant, m.want, 0o600); err != nil {
		t.Fatal(err)
	}
	var (
		stop   atomic.Bool
		reads  atomic.Int64
		failed atomic.Pointer[string]
		work   sync.WaitGroup
	)
	for i := range readers {
		work.Go(func() {
			read := m.preader
			if i%2 == 1 {
				read = m.mapped
			}
			if err := read(func() bool { return stop.Load() || failed.Load() != nil }, &reads); err != nil {
				s := err.Error()
				failed.Store(&s)
			}
		})
	}
	done := 0
	for range kills {
		time.Sleep(rand.N(300 * time.Millisecond))
		if failed.Load() != nil || m.complete() {
			break
		}
		n.Ballastd.Kill()
		n.LaunchBallastd(t)
		done++
	}
	n.Registry.Wire.Link(0, 0)
	n.Ballastd.Stop(t)
	n.LaunchBallastd(t)
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	stop.Store(true)
	work.Wait()
	if s := failed.Load(); s != nil {
		t.Errorf("after %d kills: %s", done, *s)
	}
	t.Logf("%d kills, %d reads of %d readers", done, reads.Load(), readers)
	if done < fewest {
		t.Errorf("the model was complete after %d kills, want at least %d", done, fewest)
	}
	m.awaitComplete(t)
	wantFiles(t, n, m.ref, states(converttest.ModelPackRaw(converttest.Files(m.want))))
}

// preader compares random ranges until stop returns true.
func (m *lazyModel) preader(stop func() bool, count *atomic.Int64) error {
	for !stop() {
		size := 1 + rand.IntN(64<<10)
		if err := m.read(somewhere(len(m.want)-size), size); err != nil {
			return err
		}
		count.Add(1)
	}
	return nil
}

// somewhere returns an offset below n, often one that was read before.
func somewhere(n int) int {
	if rand.IntN(16) > 0 {
		n /= 16
	}
	return rand.IntN(n)
}

// mapped is preader for a mapping, in a process of its own: a waiting page fault would soon stop all
// goroutines of the test.
func (m *lazyModel) mapped(stop func() bool, count *atomic.Int64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, mappedReaderArg, m.path, m.copyOfWant)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for !stop() {
		time.Sleep(10 * time.Millisecond)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		return fmt.Errorf("reader of a mapping: %w\n%s", err, stderr.String())
	}
	var n int64
	if _, err := fmt.Sscan(out.String(), &n); err != nil {
		return err
	}
	count.Add(n)
	return nil
}

// mappedReaderArg makes the test program a mappedReader.
const mappedReaderArg = "mapped-reader"

// mappedReader compares random pages of a mapping of a file with a copy until stdin ends, and prints
// the number of comparisons. A SIGBUS ends it with a stack trace.
func mappedReader(path, want string) error {
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	right, err := os.Open(want)
	if err != nil {
		return err
	}
	defer right.Close()
	p, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	n := 0
	for buf := make([]byte, 5000); !stop.Load(); n++ {
		off := somewhere(len(p) - len(buf))
		if _, err := right.ReadAt(buf, int64(off)); err != nil {
			return err
		}
		if !bytes.Equal(p[off:off+len(buf)], buf) {
			return fmt.Errorf("mapping has wrong bytes at %d", off)
		}
	}
	fmt.Println(n)
	return unix.Munmap(p)
}

// The daemon and the holder of its mount are killed: the next daemon replaces the mount for later
// containers, and complete files can be read throughout.
func TestLazyAllKilled(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	small := converttest.ModelPackRaw(converttest.Files(weights(122, 3<<20)))
	done := push(t, n, small)
	mustPull(t, n, "ballast", done)
	whole := filepath.Join(rootOf(t, n, done), "model.gguf")
	pause(t, n)
	m := mountLazy(t, n, 64<<20, 16<<20)
	if err := m.read(0, 1000); err != nil {
		t.Fatal(err)
	}
	n.Ballastd.Kill()
	n.KillHolder(t)
	if err := m.read(50<<20, 10); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ESTALE) {
		t.Errorf("missing bytes without a daemon: got %v, want ENOTCONN or ESTALE", err)
	}
	if got, err := os.ReadFile(whole); err != nil || digest.FromBytes(got) != digest.FromBytes(small.Files["model.gguf"].Data) {
		t.Errorf("complete model without a daemon: %v, or other bytes", err)
	}
	n.StartBallastd(t)
	again := &lazyModel{node: n, want: m.want, path: filepath.Join(rootOf(t, n, m.ref), "model.gguf")}
	if err := again.read(50<<20, 1000); err != nil {
		t.Errorf("new mount: %v", err)
	}
	again.awaitComplete(t)
}

// The registry fails after the mount: present bytes can be read, missing bytes give an error that the
// log explains, and can be read when the registry works again.
func TestLazyRegistryGone(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	m := mountLazy(t, n, 160<<20, 8<<20)
	if err := m.read(0, 1<<20); err != nil {
		t.Fatal(err)
	}
	back := n.Registry.Wire.Add(node.Fault{Match: node.AnyBlob, Status: 404})
	last := len(m.want) - 4096
	if err := m.read(last, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("missing bytes: got %v, want EIO", err)
	}
	if err := m.read(4096, 4096); err != nil {
		t.Errorf("bytes that are there: %v", err)
	}
	if !logged(t, n, "level=ERROR", "404") && !logged(t, n, "level=WARN", "not found") {
		t.Error("the log does not say why")
	}
	back()
	if err := m.read(last, 4096); err != nil {
		t.Errorf("with the registry back: %v", err)
	}
	m.readAll(t)
}

// Chunks with a wrong byte are never shown: each read fails until the right bytes are fetched.
func TestLazyCorruptChunk(t *testing.T) {
	const size, chunk, rounds = 96 << 20, 4 << 20, 20
	n := node.StartNode(t, node.Options{})
	pause(t, n)
	m := mountLazy(t, n, size, 0)
	failed := 0
	for i := range rounds { // from the end, which was not read before
		off := size - (i+1)*chunk + rand.IntN(chunk-4096)
		restore := n.Registry.Wire.Add(node.Fault{Match: node.AnyBlob, Flip: true})
		err := m.read(off, 4096)
		switch {
		case errors.Is(err, syscall.EIO):
			failed++
		case err != nil:
			t.Errorf("round %d: got %v, want EIO", i, err)
		}
		restore()
		if err := m.read(off, 4096); err != nil {
			t.Errorf("round %d: when it comes right: %v", i, err)
		}
	}
	t.Logf("%d of %d reads of corrupt chunks failed, none was wrong", failed, rounds)
	if failed < rounds/2 { // others were read ahead
		t.Errorf("%d of %d reads failed", failed, rounds)
	}
	if !logged(t, n, "level=WARN", "wrong bytes; trying another source") {
		t.Error("the log does not say so")
	}
	if out := n.Metrics(); !strings.Contains(out, "\nballast_chunks_corrupt_total ") || strings.Contains(out, "\nballast_chunks_corrupt_total 0\n") {
		t.Error("the metrics do not count it")
	}
	resume(t, n)
	m.awaitComplete(t)
}

// Truncated responses are continued.
func TestLazyTruncated(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	m := mountLazy(t, n, 32<<20, 16<<20)
	for _, f := range []node.Fault{{CutAfter: 100_000, Times: 6}, {Short: 70_000, Times: 6}} {
		f.Match = node.AnyBlob
		remove := n.Registry.Wire.Add(f)
		if err := m.read(rand.IntN(30<<20), 1<<20); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
		remove()
	}
	m.awaitComplete(t)
}

// A model from a registry without ranges cannot be read before it is complete: it is shown when it is
// complete, and the log says so.
func TestLazyWithoutRanges(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	want := weights(123, 24<<20)
	b := converttest.ModelPackRaw(converttest.Files(want))
	ref := convertedModel(t, n, b)
	n.Registry.Wire.Add(node.Fault{Match: node.AnyBlob, NoRange: true})
	mustPull(t, n, "ballast", ref)
	if !complete(n, want) {
		t.Error("the model was shown before it was complete")
	}
	if !logged(t, n, "model is shown when it is complete", "ranges") {
		t.Error("the log does not say why")
	}
	wantFiles(t, n, ref, states(b))
}

// Nodes with fewer features show the same files.
func TestLazySettings(t *testing.T) {
	for name, config := range map[string]string{
		"no passthrough":      "[lazy]\npassthrough = false\n",
		"no data-only layers": showAs("links"),
		"complete":            "[lazy]\nmode = \"complete\"\n",
		"rule":                "[[lazy.rule]]\nmatch = \"127.0.0.1:*/lazy/*\"\nmode = \"complete\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			n := node.StartNode(t, node.Options{Config: config})
			want := weights(124, 24<<20)
			b := converttest.ModelPackRaw(converttest.Files(want))
			ref := convertedModel(t, n, b)
			pause(t, n)
			mustPull(t, n, "ballast", ref)
			if early := !complete(n, want); early != (name == "no passthrough") {
				t.Errorf("shown before it was complete: %t", early)
			}
			wantFiles(t, n, ref, states(b))
		})
	}
}

// Without digests of chunks, a model is shown early only if the configuration says so. Its readers wait for the whole
// file.
func TestLazyWithoutChunks(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[lazy]\nmode = \"lazy\"\n"})
	want := weights(125, 48<<20)
	b := converttest.ModelPackRaw(converttest.Files(want))
	ref := push(t, n, b)
	pause(t, n)
	mustPull(t, n, "ballast", ref)
	if complete(n, want) {
		t.Error("the model was complete before the pull ended")
	}
	m := &lazyModel{node: n, ref: ref, want: want, path: filepath.Join(rootOf(t, n, ref), "model.gguf")}
	if err := m.read(47<<20, 1000); err != nil {
		t.Error(err)
	}
	if !m.complete() {
		t.Error("read before the file was verified")
	}
}

// TestLazyThenLinks starts the daemon such that it cannot show models before they are complete, as after a boot of an
// older kernel: it completes one that was being shown, which can then be mounted.
func TestLazyThenLinks(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	b := converttest.ModelPackRaw(converttest.Files(weights(167, 24<<20)))
	ref := convertedModel(t, n, b)
	mustPull(t, n, "ballast", ref)
	if complete(n, b.Files["model.gguf"].Data) {
		t.Fatal("the model is complete before the restart")
	}
	n.Ballastd.Stop(t)
	if err := os.WriteFile(filepath.Join(n.Dir, "conf.d/extra.toml"), []byte("version = 1\n"+showAs("links")), 0o600); err != nil {
		t.Fatal(err)
	}
	n.StartBallastd(t)
	waitFor(t, "the model", func() error {
		if !complete(n, b.Files["model.gguf"].Data) {
			return errors.New("not complete")
		}
		return nil
	})
	wantFiles(t, n, ref, states(b))
}
