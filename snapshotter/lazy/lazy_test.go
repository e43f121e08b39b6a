package lazy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestTree checks existing and missing files.
func TestTree(t *testing.T) {
	p := newPlace(t)
	d := p.add(t, 1, 3<<20+5, 3<<20+5)
	startDaemon(t, p.args()...)

	info, err := os.Stat(p.path(d))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != 3<<20+5 || info.Mode() != 0o644 {
		t.Errorf("size %d, mode %v", info.Size(), info.Mode())
	}
	for _, name := range []string{"sha256", "sha256/00", "sha256/ff", filepath.Dir(p.path(d)[len(p.mount())+1:])} {
		if info, err := os.Stat(filepath.Join(p.mount(), name)); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	hex := d.Encoded()
	other := "00"
	if hex[:2] == other {
		other = "01"
	}
	for _, name := range []string{
		"sha512", "objects", "sha256/0", "sha256/FF", "sha256/gg", "sha256/00/x", "sha256/" + other + "/" + hex,
		"sha256/" + hex[:2] + "/" + hex[:62] + "zz", "sha256/" + hex[:2] + "/" + hex[:63],
	} {
		if _, err := os.Stat(filepath.Join(p.mount(), name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(p.mount(), "new"), nil, 0o644),
		os.Remove(p.path(d)),
		os.Chmod(p.path(d), 0o600),
		os.Truncate(p.path(d), 0),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("got %v, want %v", err, unix.EROFS)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(p.mount(), "sha256")); err != nil || len(entries) != 0 {
		t.Errorf("listed: %v, %v", entries, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.mount(), &st); err != nil || st.Namelen != 255 {
		t.Errorf("statfs: %+v, %v", st, err)
	}
	// A file that is added later is found although it was looked up before.
	late := p.path(p.add(t, 2, 10, 10))
	p2 := disk{t.TempDir()}
	later := p2.add(t, 3, 20, 20)
	if _, err := os.Stat(p.path(later)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	p.add(t, 3, 20, 20)
	for _, path := range []string{late, p.path(later)} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestEndFirst reads the end of a file, the only part present, while a read of the beginning waits.
func TestEndFirst(t *testing.T) {
	const size = 64 << 20
	p := newPlace(t)
	d := p.add(t, 1, size, 0)
	p.set(t, d, ".tail", size-4<<20)
	srv := startDaemon(t, p.args("--read-ahead", "131072")...)
	f, err := os.Open(p.path(d))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begin := make(chan error, 1)
	go func() { begin <- readAt(f, 1, 0, 1<<20) }()
	eventually(t, "a read waits", func() bool { return srv.stats().Waiting > 0 })
	if err := readAt(f, 1, size-1<<20, 1<<20); err != nil {
		t.Error(err)
	}
	select {
	case err := <-begin:
		t.Fatalf("read of what is not there: %v", err)
	default:
	}
	p.set(t, d, ".have", size)
	if err := <-begin; err != nil {
		t.Error(err)
	}
	if err := readOnce(p.path(d), 1, false); err != nil {
		t.Error(err)
	}
	// The reader is in the process of the test; for mmap see readRole.
	if s := srv.stats(); s.Waiting != 0 || s.ReadErrors != 0 || s.ReadBytes < size {
		t.Errorf("%+v", s)
	}
}

// TestWaitingTakesNoMemory checks that waiting reads have no buffers, however many there are.
func TestWaitingTakesNoMemory(t *testing.T) {
	p := place{disk: disk{t.TempDir()}}
	const size, readers, step = 64 << 20, 2 * largeAnswers, 1 << 20
	file := p.add(t, 1, size, 0)
	m, err := Start(Options{Dir: p.mount(), StateDir: filepath.Join(p.dir, "state"), Source: p, ReadAhead: step})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmount()
	f, err := os.Open(p.path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan error, readers)
	for i := range readers {
		go func() { done <- readAt(f, 1, int64(i)*(size/readers), step/2) }()
	}
	eventually(t, "all reads wait", func() bool { return m.Stats().Waiting >= readers })
	if n := len(m.conn.fs.buffers.free); n != 0 {
		t.Errorf("%d buffers are taken while nothing is there", n)
	}
	p.set(t, file, ".have", size)
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestUnreadable checks that bytes that cannot be read are asked for once more, and that the Source learns why.
func TestUnreadable(t *testing.T) {
	p := place{disk: disk{t.TempDir()}}
	const size = 1 << 20
	file := p.add(t, 1, size, size)
	source := &unreadable{disk: p.disk}
	m, err := Start(Options{Dir: p.mount(), StateDir: filepath.Join(p.dir, "state"), Source: source})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmount()
	f, err := os.Open(p.path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	source.bad.Store(1)
	if err := readAt(f, 1, 0, 4<<10); err != nil {
		t.Errorf("a file that could be read the second time: %v", err)
	}
	source.bad.Store(1 << 20)
	if err := readAt(f, 1, size-4<<10, 4<<10); !errors.Is(err, unix.EIO) {
		t.Errorf("a file that cannot be read: %v, want %v", err, unix.EIO)
	}
	if n := source.told.Load(); n < 3 {
		t.Errorf("the source was told of %d errors, want at least 3", n)
	}
}

// unreadable is a disk of which the next files cannot be read.
type unreadable struct {
	disk
	bad, told atomic.Int64
}

func (u *unreadable) Await(ctx context.Context, view uint64, d digest.Digest, off int64, n int) (*os.File, func(error), error) {
	f, done, err := u.disk.Await(ctx, view, d, off, n)
	if err != nil || u.bad.Add(-1) < 0 {
		return f, done, err
	}
	done(nil)
	f, err = os.Open("/proc/self/mem") // EIO at the addresses that nobody has
	return f, func(err error) {
		if errors.Is(err, unix.EIO) {
			u.told.Add(1)
		}
		f.Close()
	}, err
}

// TestWithoutHolder serves in this process, without a holder or with a command that is not one: the mount
// works until Close.
func TestWithoutHolder(t *testing.T) {
	for name, h := range map[string]fdstore.Options{
		"none":  {},
		"wrong": {Socket: filepath.Join(t.TempDir(), "holder.sock"), Command: []string{"/bin/sh", "-c", "exit 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			p := place{disk: disk{filepath.Join(t.TempDir(), "a b")}} // escaped in mountinfo
			file := p.add(t, 1, 4<<20, 1<<20)
			m, err := Start(Options{Dir: p.mount(), StateDir: filepath.Join(p.dir, "state"), Source: p, Holder: h, ReadAhead: 128 << 10})
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(p.path(file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := readAt(f, 1, 0, 256<<10); err != nil {
				t.Error(err)
			}
			done := make(chan error, 1)
			go func() { done <- readAt(f, 1, 2<<20, 4096) }()
			eventually(t, "a read waits", func() bool { return m.Stats().Waiting > 0 })
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			<-m.Done()
			if err := <-done; err == nil {
				t.Error("read of what is not there")
			}
			if err := m.Close(); err != nil {
				t.Errorf("second time: %v", err)
			}
			if _, ok, err := findMount(p.mount()); ok || err != nil {
				t.Errorf("still mounted, %v", err)
			}
		})
	}
}

// TestUnmounted unmounts from outside: serving ends, and the next start makes a new mount.
func TestUnmounted(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	o := Options{Dir: p.mount(), StateDir: filepath.Join(p.dir, "state"), Source: p}
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(m.Dir(), 0); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if m, err = Start(o); err != nil {
		t.Fatal(err)
	}
	if err := readOnce(p.path(file), 1, false); err != nil {
		t.Error(err)
	}
	if err := m.Unmount(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(o.StateDir); err != nil || len(entries) != 0 {
		t.Errorf("state is left: %v, %v", entries, err)
	}
}

// If no process could keep the mount at first, Close tries again.
func TestCloseFindsAKeeper(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ok := filepath.Join(p.dir, "ok")
	o := Options{Dir: p.mount(), StateDir: filepath.Join(p.dir, "state"), Source: p, Holder: fdstore.Options{
		Socket: p.socket, Command: []string{"/bin/sh", "-c", `[ -e "$0" ] || exit 1; exec "$@"`, ok, self, "holder"}}}
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := m.Status(); err != nil || s.Kept {
		t.Errorf("got %+v, %v", s, err)
	}
	f := open(t, p.path(file))
	if err := os.WriteFile(ok, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err = Start(o); err != nil {
		t.Fatal(err)
	}
	if got := m.Stats().Takeovers; got != 1 {
		t.Errorf("got %d takeovers, want 1", got)
	}
	if err := readAt(f, 1, 0, 1<<20); err != nil {
		t.Error(err)
	}
	f.Close()
	if err := m.Unmount(); err != nil {
		t.Error(err)
	}
}

// TestForget makes the kernel forget files: their slots are reused, and open files keep theirs.
func TestForget(t *testing.T) {
	p := newPlace(t)
	const many = 200
	var digests []digest.Digest
	for i := range uint64(2 * many) {
		digests = append(digests, p.add(t, i+1, 5000, 5000))
	}
	d := startDaemon(t, p.args()...)
	look := func(digests []digest.Digest) {
		t.Helper()
		for _, d := range digests {
			if _, err := os.Stat(p.path(d)); err != nil {
				t.Fatal(err)
			}
		}
	}
	shrink := func() { // remounting drops unused dentries
		t.Helper()
		if err := unix.Mount("", p.mount(), "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.Open(p.path(digests[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	look(digests[:many])
	if got := d.stats().Nodes; got != many {
		t.Errorf("%d nodes, want %d", got, many)
	}
	shrink()
	eventually(t, "all but the open file to be forgotten", func() bool { return d.stats().Nodes == 1 })
	look(digests[many:])
	look(digests[:many])
	if err := readAt(held, 1, 0, 5000); err != nil {
		t.Error(err)
	}
	shrink()
	eventually(t, "all but the open file to be forgotten", func() bool { return d.stats().Nodes == 1 })
	held.Close()
	shrink()
	eventually(t, "all to be forgotten", func() bool { return d.stats().Nodes == 0 })
	info, err := os.Stat(filepath.Join(p.dir, "lazy.state", nodesFile))
	if err != nil || info.Size() > (2*many+1)*nodeSlot {
		t.Errorf("the file of nodes: %v, %v", info, err)
	}
	look(digests)
	if err := readOnce(p.path(digests[7]), 8, false); err != nil {
		t.Error(err)
	}
}

// TestShareOfHandles opens as many files as one container may.
func TestShareOfHandles(t *testing.T) {
	refused := 0
	fs := &fileSystem{callers: map[string]*caller{}, owners: map[uint32]*caller{}, refused: func(string) { refused++ }}
	open := func(who string) (n int) {
		for ; ; n++ {
			if fs.allot(&handle{mode: modeCached}, who) != nil {
				return n
			}
		}
	}
	if got := open("evil"); got > maxHandles/handleShare || got < maxHandles/handleShare/2 {
		t.Errorf("one opened %d of %d", got, maxHandles)
	}
	for i := range 100 {
		if got := open(fmt.Sprint("other", i)); got < minHandles {
			t.Fatalf("another could open %d, want at least %d", got, minHandles)
		}
	}
	if got := open("victim"); got < minHandles {
		t.Errorf("the victim could open %d", got)
	}
	if refused != 102 {
		t.Errorf("%d refusals were counted", refused)
	}
	for slot := range fs.handles {
		fs.disown(uint32(slot))
	}
	if len(fs.callers)+len(fs.owners) != 0 {
		t.Errorf("%d callers, %d owners are left", len(fs.callers), len(fs.owners))
	}
	if callerOf(uint32(os.Getpid())) == "" {
		t.Error("the control group of this process is not known")
	}
}
