package ahead

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the process of an Ahead: its arguments are processArg, the directory of a cgroup, and the
// number of files.
func TestMain(m *testing.M) {
	enough = func(n int64) bool { return n < 1<<50 }
	if len(os.Args) == 4 && os.Args[1] == processArg {
		var n int
		if _, err := fmt.Sscanf(os.Args[3], "--files=%d", &n); err != nil {
			panic(err)
		}
		var files []*os.File
		for i := range n {
			files = append(files, os.NewFile(uintptr(3+i), "model"))
		}
		ctx, stop := context.WithCancel(context.Background())
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
		if err := Run(ctx, os.Args[2], files); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const processArg = "read-ahead"

// newFile returns a file of n windows and a half that is not in the page cache, and is read page by page.
func newFile(t *testing.T, n int) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	p := make([]byte, 1<<20)
	for i := range n*window>>20 + window>>21 {
		p[0] = byte(i)
		if _, err := f.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	drop(t, f)
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	return f
}

// drop removes a file from the page cache.
func drop(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n := cached(t, f); n > 0 {
		t.Fatalf("%d bytes stay in the page cache: is the temporary directory on a disk?", n)
	}
}

// cached returns how many bytes of a file are in the page cache.
func cached(t *testing.T, f *os.File) int64 {
	t.Helper()
	n, err := (&follower{file: f}).cached(0, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// most returns how many of n bytes that were read are in the page cache at least: the kernel takes pages back when it
// likes to.
func most(n int64) int64 { return n - n/8 }

// readPage reads a page of a file.
func readPage(t *testing.T, f *os.File, off int64) {
	t.Helper()
	if _, err := f.ReadAt(make([]byte, page), off); err != nil {
		t.Fatal(err)
	}
}

// TestFollow reads the first pages of windows, and looks how much is read ahead: nothing before the first, one
// window more for each, no more than depth windows that nobody has reached, and nothing when nobody reads on.
func TestFollow(t *testing.T) {
	const windows = depth + 6
	file := newFile(t, windows)
	f, err := newFollower(file)
	if err != nil {
		t.Fatal(err)
	}
	look := func(reached, ahead int) {
		t.Helper()
		for range 3 {
			if _, err := f.follow(0); err != nil {
				t.Fatal(err)
			}
		}
		if f.reached != reached || len(f.ahead) != ahead {
			t.Errorf("%d windows are reached and %d are ahead, want %d and %d", f.reached, len(f.ahead), reached, ahead)
		}
		// All pages of these windows, but not the first ones of those that are ahead.
		want := min(int64(reached+ahead)*window, f.size) - int64(ahead)*page
		if got := cached(t, file); got > want || got < most(want) {
			t.Errorf("%d bytes are in the page cache after %d windows, want %d", got, reached, want)
		}
	}
	look(0, 0)
	for w := range 3 {
		readPage(t, file, int64(w)*window)
		look(w+1, w+1)
	}
	for w := 3; w < depth+2; w++ {
		readPage(t, file, int64(w)*window)
	}
	look(depth+2, 5) // the last one is a half
	if f.next != f.windows {
		t.Errorf("%d of %d windows are read ahead", f.next, f.windows)
	}
}

// TestOthers looks at a file that has been read before, and is not read now.
func TestOthers(t *testing.T) {
	file := newFile(t, 3)
	readPage(t, file, 0)
	readPage(t, file, window)
	f, err := newFollower(file)
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := f.follow(0); moved || err != nil || cached(t, file) != 0 {
		t.Errorf("nobody reads: %v, %v, %d bytes are in the page cache", moved, err, cached(t, file))
	}
	readPage(t, file, 0)
	if _, err := f.follow(1 << 60); err != nil || cached(t, file) != page {
		t.Errorf("more than there is memory for: %v, %d bytes are in the page cache", err, cached(t, file))
	}
	drop(t, file)
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.follow(0); err != nil || f.next != f.windows {
		t.Errorf("the file is removed: %v, %d of %d windows are done", err, f.next, f.windows)
	}
	await(t, "nothing to do for a file that is in the page cache", func() bool {
		if _, err := io.Copy(io.Discard, io.NewSectionReader(file, 0, f.size)); err != nil {
			t.Fatal(err)
		}
		f, err := newFollower(file)
		if err != nil {
			t.Fatal(err)
		}
		return f.next == f.windows
	})
}

// TestLetsGo removes one of two files while they are read: the space of that one is free at once.
func TestLetsGo(t *testing.T) {
	var read, passed []*os.File
	for range 2 {
		f := newFile(t, 4)
		p, err := os.Open(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		read, passed = append(read, f), append(passed, p)
	}
	open := fmt.Sprintf("/proc/self/fd/%d", passed[1].Fd())
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- follow(ctx, passed) }()
	await(t, "both are read ahead", func() bool {
		for _, f := range read { // once it begins, it drops what was read before
			readPage(t, f, 0)
		}
		return cached(t, read[0]) >= most(window) && cached(t, read[1]) >= most(window)
	})
	if err := os.Remove(read[1].Name()); err != nil {
		t.Fatal(err)
	}
	await(t, "the removed file is closed", func() bool {
		name, err := os.Readlink(open)
		return err != nil || !strings.Contains(name, read[1].Name())
	})
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestKeepsFile drops the last reference to a file that is followed.
func TestKeepsFile(t *testing.T) {
	open := func() *follower {
		file, err := os.Open(newFile(t, 2).Name())
		if err != nil {
			t.Fatal(err)
		}
		f, err := newFollower(file)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := open()
	for range 2 { // a finalizer runs after a collection
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := f.follow(0); err != nil {
		t.Error(err)
	}
}

// TestRequestTime checks that the time of a request is measured without the page cache.
func TestRequestTime(t *testing.T) {
	file := newFile(t, 1)
	if d, err := requestTime(file); err != nil || d <= 0 || cached(t, file) != 0 {
		t.Errorf("%v, %v, %d bytes are in the page cache", d, err, cached(t, file))
	}
}

// TestMemory follows a loader from a memory cgroup with a limit that is a sixth of the model: the pages are
// charged to another cgroup, they are in the page cache in the end, and the process ends by itself.
func TestMemory(t *testing.T) {
	const limit = 32 << 20
	file := newFile(t, 12)
	daemon, pages := newCgroup(t, limit), newCgroup(t, 0)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := New(Options{Log: slog.New(slog.DiscardHandler), Command: []string{
		"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, daemon.dir, self, processArg, pages.dir,
	}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	following := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.names)
	}
	var opened atomic.Int32
	on := func(context.Context) Mode { return On }
	open := func(context.Context) ([]*os.File, error) {
		if opened.Add(1) == 2 { // while it is followed, it is followed once more
			a.Mounted("model", on, nil)
		}
		f, err := os.Open(file.Name())
		return []*os.File{f}, err
	}
	await(t, "the process to follow", func() bool {
		if following() == 0 { // Run may not have begun
			a.Mounted("model", on, open)
		}
		return pages.processes(t) == 1
	})
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// read reads first pages, again and again: the process drops them at its start, and the kernel may take them back
	// before it has looked.
	read := func(end int64) {
		for off := int64(0); off < end; off += window {
			readPage(t, file, off)
		}
	}
	for off := int64(0); off < info.Size(); off += window {
		await(t, "the window before to be read ahead", func() bool {
			read(off + 1)
			return cached(t, file) >= most(off)
		})
	}
	await(t, "the end of the process", func() bool {
		read(info.Size())
		return following() == 0
	})
	if n := opened.Load(); n != 1 {
		t.Errorf("it was followed %d times", n)
	}
	a.Mounted("model", func(context.Context) Mode { return Off }, open)
	a.Mounted("model", on, open)
	await(t, "the end of both processes", func() bool {
		read(info.Size())
		return opened.Load() == 3 && following() == 0
	})
	if n := cached(t, file); n < most(info.Size()) {
		t.Errorf("%d of %d bytes are in the page cache", n, info.Size())
	}
	if n := pages.cache(t); n < info.Size()*9/10 {
		t.Errorf("%d of %d bytes are charged to the cgroup for pages", n, info.Size())
	}
	if n := daemon.cache(t); n > limit/4 {
		t.Errorf("%d bytes of page cache are charged to the daemon", n)
	}
	if n := daemon.failures(t); n != 0 {
		t.Errorf("the daemon has met its limit %d times", n)
	}
}

// TestUnlimited checks that pages are not read ahead in a cgroup with a limit.
func TestUnlimited(t *testing.T) {
	limited := newCgroup(t, 32<<20)
	dir := t.TempDir()
	if err := os.Symlink(limited.dir, filepath.Join(dir, "memory")); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{dir, limited.dir, t.TempDir()} {
		if got, err := unlimited(root); err == nil {
			t.Errorf("%s: %s is taken", root, got)
		}
	}
	if got, err := unlimited("/sys/fs/cgroup"); err != nil || !strings.HasPrefix(limited.dir, got+"/") {
		t.Errorf("the root is %q (%v), and %s is below it", got, err, limited.dir)
	}
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// A cgroup is a memory cgroup, of either version.
type cgroup struct {
	dir   string
	first bool // version
}

// newCgroup makes a cgroup with a limit in bytes, or without one.
func newCgroup(t *testing.T, limit int64) cgroup {
	t.Helper()
	c := cgroup{dir: "/sys/fs/cgroup/memory", first: true}
	if _, err := os.Stat(c.dir); err != nil {
		c = cgroup{dir: "/sys/fs/cgroup"}
	}
	dir, err := os.MkdirTemp(c.dir, "ballast-test-ahead-")
	if err != nil {
		t.Fatalf("a memory cgroup is needed: %v", err)
	}
	c.dir = dir
	t.Cleanup(func() {
		await(t, "the processes of a cgroup to end", func() bool { return os.Remove(dir) == nil })
	})
	if limit > 0 {
		name := map[bool]string{true: "memory.limit_in_bytes", false: "memory.max"}[c.first]
		if err := os.WriteFile(filepath.Join(dir, name), strconv.AppendInt(nil, limit, 10), 0); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c cgroup) processes(t *testing.T) int {
	t.Helper()
	return len(strings.Fields(c.file(t, "cgroup.procs")))
}

// cache returns how many bytes of the page cache are charged.
func (c cgroup) cache(t *testing.T) int64 {
	t.Helper()
	return c.value(t, "memory.stat", map[bool]string{true: "cache", false: "file"}[c.first])
}

// failures returns how often the limit was met.
func (c cgroup) failures(t *testing.T) int64 {
	t.Helper()
	if c.first {
		n, err := strconv.ParseInt(strings.TrimSpace(c.file(t, "memory.failcnt")), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return c.value(t, "memory.events", "max")
}

// value returns the value of a key.
func (c cgroup) value(t *testing.T, file, key string) int64 {
	t.Helper()
	for line := range strings.Lines(c.file(t, file)) {
		var k string
		var n int64
		if _, err := fmt.Sscan(line, &k, &n); err == nil && k == key {
			return n
		}
	}
	t.Fatalf("%s of %s has no %s", file, c.dir, key)
	return 0
}

func (c cgroup) file(t *testing.T, name string) string {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// TestAvailable: some memory is available, and not more than there is.
func TestAvailable(t *testing.T) {
	if available(1 << 50) {
		t.Error("a pebibyte is available")
	}
}
