package lazy

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/store"
	"golang.org/x/sys/unix"
)

// A reader is a process of readRole.
type reader struct {
	cmd      *exec.Cmd
	in       io.Closer
	out, log bytes.Buffer
	ended    chan struct{} // closed when Wait has returned; then err is its result
	err      error
}

func startReader(t testing.TB, path string, seed uint64, mapped bool) *reader {
	t.Helper()
	r := &reader{}
	r.start(t, path, seed, mapped, nil)
	return r
}

func (r *reader) start(t testing.TB, path string, seed uint64, mapped bool, attr *syscall.SysProcAttr) {
	t.Helper()
	r.cmd = exec.Command("/proc/self/exe", "read", "--path", path, "--seed", strconv.FormatUint(seed, 10), "--mmap="+strconv.FormatBool(mapped))
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.SysProcAttr = &r.out, &r.log, attr
	in, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in = in
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.ended = make(chan struct{})
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // if it still runs
		<-r.ended
	})
}

// running reports whether the reader has not ended. Signals do not tell: a process can receive them
// after its end, until Wait.
func (r *reader) running() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// finish ends the reader and returns how often it read the file.
func (r *reader) finish(t testing.TB) int {
	t.Helper()
	if err := r.in.Close(); err != nil {
		t.Fatal(err)
	}
	if <-r.ended; r.err != nil {
		t.Fatalf("reader: %v\n%s", r.err, r.log.String())
	}
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(r.out.String(), "rounds ")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestReaderThatFails checks that TestKilled would notice a reader with an error.
func TestReaderThatFails(t *testing.T) {
	r := startReader(t, filepath.Join(t.TempDir(), "none"), 1, false)
	eventually(t, "the reader has failed", func() bool { return !r.running() })
	if r.err == nil {
		t.Error("no error")
	}
}

// TestKilled kills the daemon many times while other processes read complete and incomplete files, by
// pread and mmap.
func TestKilled(t *testing.T) {
	const size = 24 << 20
	p := newPlace(t)
	a, b := p.add(t, 1, size, size), p.add(t, 2, size+12345, size+12345)
	c := p.add(t, 3, size, size)
	p.complete(t, c)
	d := startDaemon(t, p.args()...)
	readers := []*reader{
		startReader(t, p.path(a), 1, false), startReader(t, p.path(a), 1, true),
		startReader(t, p.path(b), 2, true), startReader(t, p.path(c), 3, false),
	}
	for i := range 20 {
		// After some reads, not after some time, so that the kill is during a read.
		eventually(t, "reads", func() bool { s := d.stats(); return s.Reads > int64(10*(i%4)) && s.Opens > 0 })
		if s := d.stats(); s.Takeovers != min(int64(i), 1) || s.ReadErrors != 0 || s.StateErrors != 0 {
			t.Fatalf("round %d: %+v\n%s", i, s, d.log)
		}
		d.kill()
		d = startDaemon(t, p.args()...)
		for _, r := range readers {
			if !r.running() {
				t.Fatalf("a reader has ended: %v\n%s", r.err, r.log.String())
			}
		}
	}
	for i, r := range readers {
		if n := r.finish(t); n == 0 {
			t.Errorf("reader %d read nothing", i)
		}
	}
	if s := d.stats(); s.ReadErrors != 0 || s.Takeovers != 1 {
		t.Errorf("%+v\n%s", s, d.log)
	}
	d.tell("unmount")
}

// TestWaitingReader kills the daemon twice in a row while a read waits for missing bytes, and closes it
// once.
func TestWaitingReader(t *testing.T) {
	const size = 8 << 20
	p := newPlace(t)
	file := p.add(t, 1, size, 0)
	d := startDaemon(t, p.args()...)
	f, err := os.Open(p.path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan error, 1)
	go func() { done <- readAt(f, 1, 0, size) }()
	for i := range 4 {
		eventually(t, "a read waits", func() bool { return d.stats().Waiting > 0 })
		switch i {
		case 2:
			d.tell("close")
		case 3: // within one process
			if _, err := io.WriteString(d.in, "again\n"); err != nil || !d.out.Scan() || d.out.Text() != "again" {
				t.Fatalf("%v, %q\n%s", err, d.out.Text(), d.log)
			}
			continue
		default:
			d.kill()
		}
		d = startDaemon(t, p.args()...)
	}
	select {
	case err := <-done:
		t.Fatalf("read of what is not there: %v", err)
	default:
	}
	p.set(t, file, ".have", size)
	if err := <-done; err != nil {
		t.Error(err)
	}
	d.tell("unmount")
}

// TestHolderKilled kills the holder alone, which is replaced, and then with the daemon: the mount is
// then dead, and the next start replaces it.
func TestHolderKilled(t *testing.T) {
	const size = 4 << 20
	p := newPlace(t)
	file := p.add(t, 1, size, size)
	d := startDaemon(t, p.args()...)
	if err := readOnce(p.path(file), 1, false); err != nil {
		t.Fatal(err)
	}
	first := holderPid(p.socket)
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new holder", func() bool {
		held := fdstore.New(fdstore.Options{Socket: p.socket}, slog.New(slog.DiscardHandler)).Take(false)
		for _, f := range held {
			f.Close()
		}
		return len(held) == 1
	})
	d.kill()
	d = startDaemon(t, p.args()...)
	if s := d.stats(); s.Takeovers != 1 {
		t.Errorf("not taken over: %+v\n%s", s, d.log)
	}
	f, err := os.Open(p.path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	second := holderPid(p.socket)
	d.cmd.Process.Signal(unix.SIGSTOP) // so that it does not replace the holder
	if err := unix.Kill(second, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.kill()
	if _, err := os.Open(p.path(file)); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Fatalf("mount is not dead: %v", err)
	}
	d = startDaemon(t, p.args()...)
	if err := readOnce(p.path(file), 1, false); err != nil {
		t.Error(err)
	}
	if s := d.stats(); s.Takeovers != 0 {
		t.Errorf("%+v", s)
	}
	d.tell("unmount")
	if mi, ok, err := findMount(p.mount()); ok || err != nil {
		t.Errorf("still mounted: %v, %v", mi, err)
	}
}

// TestReaderKilled kills readers that wait for bytes.
func TestReaderKilled(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 8<<20, 0)
	d := startDaemon(t, p.args()...)
	for _, dead := range []bool{false, true} {
		for _, mapped := range []bool{false, true} {
			r := startReader(t, p.path(file), 1, mapped)
			eventually(t, "a read waits", func() bool { return d.stats().Waiting > 0 })
			if dead {
				d.kill()
			}
			if err := r.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the reader is dead", func() bool { return !r.running() })
			if dead {
				d = startDaemon(t, p.args()...)
			}
		}
	}
	p.set(t, file, ".have", 8<<20)
	eventually(t, "no read is left", func() bool { return d.stats().Waiting == 0 })
	if err := readOnce(p.path(file), 1, false); err != nil {
		t.Error(err)
	}
	d.tell("unmount")
}

// TestViews checks that a file exists only in its view, also for open handles after another process has
// taken over the mount.
func TestViews(t *testing.T) {
	const size = 3 << 20
	p := newPlace(t)
	d := p.in(7).add(t, 1, size, size)
	if other := p.in(8).add(t, 1, size, 0); other != d {
		t.Fatalf("%s is not %s", other, d)
	}
	s := startDaemon(t, p.args()...)
	in := func(view string) string { return filepath.Join(p.mount(), view, store.ObjectName(d)) }
	for _, view := range []string{"", "9", "07", "0", "-7", "x", "18446744073709551615"} {
		if _, err := os.Stat(in(view)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("view %q: %v", view, err)
		}
	}
	f, err := os.Open(in("7"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	number := func(path string) uint64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	mine, others := number(in("7")), number(in("8"))
	if mine == others {
		t.Error("two views have one file")
	}
	s.kill()
	s = startDaemon(t, p.args()...)
	if err := readAt(f, 1, 1<<20, 4096); err != nil {
		t.Error(err)
	}
	if number(in("7")) != mine || number(in("8")) != others {
		t.Error("files have other numbers after a takeover")
	}
	s.tell("unmount")
}
