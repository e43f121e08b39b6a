package lazy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestMain also is the daemon, the holder and the readers that the tests start.
func TestMain(m *testing.M) {
	roles := map[string]func([]string) error{"serve": serveRole, "holder": holderRole, "read": readRole}
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, os.Args[1], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A disk is a Source of files: objects/<name> is complete, partial/<hex> is not. Of the
// latter, bytes up to the number in partial/<hex>.have can be read, and from that in .tail.
type disk struct{ dir string }

func (s disk) object(d digest.Digest) string {
	return filepath.Join(s.dir, "objects", store.ObjectName(d))
}
func (s disk) partial(d digest.Digest) string { return filepath.Join(s.dir, "partial", d.Encoded()) }

// in returns the disk that a view sees: that of the common view is the disk itself.
func (s disk) in(view uint64) disk {
	if view == 0 {
		return s
	}
	return disk{filepath.Join(s.dir, fmt.Sprint("view", view))}
}

func (s disk) LazyFile(view uint64, d digest.Digest) (int64, digest.Digest, error) {
	s = s.in(view)
	// The object again: a file that is completed between two looks is in neither place.
	for _, path := range []string{s.object(d), s.partial(d), s.object(d)} {
		info, err := os.Stat(path)
		if err == nil {
			return info.Size(), digest.FromString(fmt.Sprint(view, d)), nil // its parts do not lie
		}
		if !errors.Is(err, os.ErrNotExist) {
			return 0, "", err
		}
	}
	return 0, "", errdefs.ErrNotFound
}

func (s disk) OpenObject(view uint64, d digest.Digest) (*os.File, error) {
	f, err := os.Open(s.in(view).object(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return f, err
}

func (s disk) Await(ctx context.Context, view uint64, d digest.Digest, off int64, n int) (*os.File, func(error), error) {
	s = s.in(view)
	f, err := os.Open(s.partial(d))
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(s.partial(d) + ".bad"); err == nil {
		return nil, nil, errors.Join(errdefs.ErrDataLoss, f.Close())
	}
	for !s.has(d, off, off+int64(n)) {
		select {
		case <-ctx.Done():
			return nil, nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return f, func(error) { f.Close() }, nil
}

func (s disk) has(d digest.Digest, from, to int64) bool {
	number := func(suffix string) int64 {
		p, err := os.ReadFile(s.partial(d) + suffix)
		if err != nil {
			return -1
		}
		n, err := strconv.ParseInt(string(p), 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	have, tail := number(".have"), number(".tail")
	return to <= have || tail >= 0 && from >= tail
}

// set says what can be read of a partial file.
func (s disk) set(t testing.TB, d digest.Digest, suffix string, n int64) {
	t.Helper()
	path := s.partial(d) + suffix
	if err := os.WriteFile(path+".new", strconv.AppendInt(nil, n, 10), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// complete makes a partial file an object.
func (s disk) complete(t testing.TB, d digest.Digest) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.object(d)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.partial(d), s.object(d)); err != nil {
		t.Fatal(err)
	}
}

// content fills p with what a file of the given seed has at off, a multiple of 8.
func content(p []byte, seed uint64, off int64) {
	for i := 0; i < len(p); i += 8 {
		x := (uint64(off)+uint64(i))*0x9e3779b97f4a7c15 + seed
		x ^= x >> 29
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 32
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], x)
		copy(p[i:], w[:])
	}
}

// add makes a partial file of which have bytes can be read. Its digest is only a name here:
// verifying is the Source's.
func (s disk) add(t testing.TB, seed uint64, size, have int64) digest.Digest {
	t.Helper()
	d := digest.FromString(fmt.Sprint("file ", seed, size))
	if err := os.MkdirAll(filepath.Dir(s.partial(d)), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(s.partial(d))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, min(1<<20, (size+7)&^7))
	for off := int64(0); off < size; off += int64(len(buf)) {
		content(buf, seed, off)
		if _, err := f.Write(buf[:min(int64(len(buf)), size-off)]); err != nil {
			t.Fatal(err)
		}
	}
	s.set(t, d, ".have", have)
	return d
}

// serveRole serves a mount: it reads commands and answers with a line each.
func serveRole(args []string) error {
	var o Options
	var root string
	var stats bool
	set := flag.NewFlagSet("serve", flag.ContinueOnError)
	set.StringVar(&root, "root", "", "")
	set.StringVar(&o.Holder.Socket, "socket", "", "")
	set.DurationVar(&o.Holder.Wait, "wait", 0, "")
	set.BoolVar(&o.NoPassthrough, "no-passthrough", false, "")
	set.BoolVar(&o.NoIDMap, "no-idmap", false, "")
	set.StringVar(&o.Apart, "apart", "", "")
	set.Int64Var(&o.ReadAhead, "read-ahead", 0, "")
	set.BoolVar(&stats, "stats", false, "")
	if err := set.Parse(args); err != nil {
		return err
	}
	o.Dir, o.StateDir, o.Source = filepath.Join(root, "lazy"), filepath.Join(root, "lazy.state"), disk{root}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if o.Holder.Socket != "" {
		o.Holder.Command = []string{"/proc/self/exe", "holder"}
	}
	m, err := Start(o)
	if err != nil {
		return err
	}
	fmt.Println("ready", m.Dir())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "stats":
			if err := json.NewEncoder(os.Stdout).Encode(m.Stats()); err != nil {
				return err
			}
		case "close":
			return m.Close()
		case "unmount":
			return m.Unmount()
		case "again": // in one process
			if err := m.Close(); err != nil {
				return err
			}
			if m, err = Start(o); err != nil {
				return err
			}
			fmt.Println("again")
		}
	}
	return in.Err()
}

func holderRole(args []string) error {
	set := flag.NewFlagSet("holder", flag.ContinueOnError)
	fd, socket := set.Int("fd", 0, ""), set.String("socket", "", "")
	stay, manager := set.Bool("stay", false, ""), set.String("notify", "", "")
	listen, count := set.String("listen", "", "LISTEN_FDNAMES"), set.String("count", "0", "LISTEN_FDS")
	if err := set.Parse(args); err != nil {
		return err
	}
	if *stay {
		held, err := fdstore.Passed(strconv.Itoa(os.Getpid()), *count, *listen)
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		return fdstore.ServeHolder(context.Background(), fdstore.Stay{Socket: *socket, NotifySocket: *manager, Held: held}, log)
	}
	return fdstore.RunHolder(context.Background(), os.NewFile(uintptr(*fd), "listener"), *socket, slog.New(slog.DiscardHandler))
}

// readRole reads a file again and again, by pread or mmap, dropping it from the page cache in
// between, and compares it, until its input ends.
func readRole(args []string) error {
	set := flag.NewFlagSet("read", flag.ContinueOnError)
	path, seed, mapped := set.String("path", "", ""), set.Uint64("seed", 0, ""), set.Bool("mmap", false, "")
	if err := set.Parse(args); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for rounds := 0; ; rounds++ {
		select {
		case <-ended:
			fmt.Println("rounds", rounds)
			return nil
		default:
		}
		if err := readOnce(*path, *seed, *mapped); err != nil {
			return err
		}
	}
}

func readOnce(path string, seed uint64, mapped bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	var all []byte
	if mapped {
		if all, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return err
		}
		defer unix.Munmap(all)
	}
	got, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := int64(0); off < info.Size(); off += int64(len(want)) {
		n := min(int64(len(want)), info.Size()-off)
		if mapped {
			copy(got, all[off:off+n])
		} else if _, err := f.ReadAt(got[:n], off); err != nil {
			return err
		}
		content(want, seed, off)
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("%s differs near %d", path, off)
		}
	}
	return nil
}

// A daemon is a process that serves.
type daemon struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	log *bytes.Buffer
}

// startDaemon starts one and waits until it serves.
func startDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, cmd: exec.Command("/proc/self/exe", append([]string{"serve"}, args...)...), log: &bytes.Buffer{}}
	d.cmd.Stderr = d.log
	d.run()
	return d
}

func (d *daemon) run() {
	d.t.Helper()
	in, err := d.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.in, d.out = in, bufio.NewScanner(out)
	d.t.Cleanup(d.kill)
	if !d.out.Scan() || !strings.HasPrefix(d.out.Text(), "ready ") {
		_ = d.cmd.Wait()
		d.t.Fatalf("daemon says %q\n%s", d.out.Text(), d.log)
	}
}

// kill ends it at once.
func (d *daemon) kill() {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	}
}

// tell sends a command that ends the daemon.
func (d *daemon) tell(command string) {
	d.t.Helper()
	fmt.Fprintln(d.in, command)
	if err := d.cmd.Wait(); err != nil {
		d.t.Fatalf("%s: %v\n%s", command, err, d.log)
	}
}

func (d *daemon) stats() (s Stats) {
	d.t.Helper()
	fmt.Fprintln(d.in, "stats")
	if !d.out.Scan() {
		d.t.Fatalf("no stats\n%s", d.log)
	}
	if err := json.Unmarshal(d.out.Bytes(), &s); err != nil {
		d.t.Fatal(err)
	}
	return s
}

// A node of tests has a root with a disk and a mount.
type place struct {
	disk
	socket string
}

// newPlace returns a place whose mount and holder are gone when the test ends.
func newPlace(t testing.TB) place {
	t.Helper()
	root := t.TempDir()
	p := place{disk{root}, filepath.Join(root, "holder.sock")}
	t.Cleanup(func() {
		// The holder must drop the connection: an unmount ends it only when no other process of the machine
		// has a copy of the mount namespace.
		o := Options{Dir: p.mount(), Apart: p.apart(), StateDir: filepath.Join(p.dir, "lazy.state")}
		o.Holder.Socket = p.socket
		if _, err := Detach(o); err != nil {
			t.Error(err)
		}
		eventually(t, "the holder is gone", func() bool { return holderPid(p.socket) == 0 })
	})
	return p
}

func (p place) mount() string { return filepath.Join(p.dir, "lazy") }

// apart is outside of the root.
func (p place) apart() string { return filepath.Join(p.dir+".run", "lazy") }

func (p place) args(more ...string) []string {
	return append([]string{"--root", p.dir, "--socket", p.socket}, more...)
}

// path returns where the mount shows a file.
func (p place) path(d digest.Digest) string { return filepath.Join(p.mount(), store.ObjectName(d)) }

// eventually waits for an effect of another process.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen: " + what)
		}
	}
}

// readAll reads a range through the mount and compares it.
func readAt(f *os.File, seed uint64, off, size int64) error {
	got, want := make([]byte, size), make([]byte, size)
	if _, err := f.ReadAt(got, off); err != nil {
		return err
	}
	content(want, seed, off)
	if !bytes.Equal(got, want) {
		return fmt.Errorf("bytes at %d differ", off)
	}
	return nil
}

// holderPid returns the process that keeps the connections of a socket, or 0.
func holderPid(socket string) int {
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, e := range entries {
		p, err := os.ReadFile(e)
		if err == nil && bytes.Contains(p, []byte("\x00holder\x00")) && bytes.Contains(p, []byte(socket+"\x00")) {
			if pid, err := strconv.Atoi(strings.Split(e, "/")[2]); err == nil {
				return pid
			}
		}
	}
	return 0
}
