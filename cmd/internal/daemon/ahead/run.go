package ahead

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// window is the unit of reading ahead, in bytes. The reader waits for one page of each.
	window = 16 << 20

	// depth is how many windows of a file are read ahead at most that no reader has reached: what a disk
	// with 2 GB/s gives in 60 ms, some times what it takes to see that a reader goes on.
	depth = 8

	// idle is how long nobody reads until Run returns. Programs import libraries before they load a model.
	idle = 5 * time.Minute

	// The intervals at which Run looks for readers: while they read, and before.
	often, seldom = 10 * time.Millisecond, 100 * time.Millisecond
)

// Run reads files ahead of their readers until everything is read, nobody has read on for some minutes or ctx ends.
// Files are closed as soon as they are read, or removed, which frees their space. The pages are charged to the memory
// cgroup with the directory cgroup, which the process moves to. If it is empty, that is the root of the hierarchy; it
// returns errdefs.ErrFailedPrecondition if that is limited.
func Run(ctx context.Context, cgroup string, files []*os.File) error {
	if err := enter(cgroup); err != nil {
		return err
	}
	return follow(ctx, files)
}

// follow is Run in the cgroup of the process.
func follow(ctx context.Context, files []*os.File) error {
	var rest []*follower
	for _, f := range files {
		fo, err := newFollower(f)
		if err != nil {
			return err
		}
		rest = append(rest, fo)
	}
	last := time.Now()
	for len(rest) > 0 && time.Since(last) < idle {
		var left []*follower
		var unread int64
		for _, f := range rest {
			unread += f.size - int64(f.next)*window
		}
		for _, f := range rest {
			moved, err := f.follow(unread)
			if err != nil {
				return err
			}
			if moved {
				last = time.Now()
			}
			if f.next < f.windows {
				left = append(left, f)
			} else {
				_ = f.file.Close() // only read
			}
		}
		rest = left
		pause := seldom
		if time.Since(last) < time.Second {
			pause = often
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
	return nil
}

// A follower reads one file ahead of its readers.
type follower struct {
	file    *os.File
	size    int64
	step    int   // that readahead(2) accepts, in bytes
	windows int   // how many the file has
	next    int   // the first window that was not read ahead
	reached int   // how many of those before next have been reached by a reader
	ahead   []int // those that have not
}

// newFollower drops the first pages of windows that are in the page cache and not mapped, so that it is seen
// when they are read.
func newFollower(file *os.File) (*follower, error) {
	var st unix.Stat_t
	fd := int(file.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	f := &follower{file: file, size: st.Size, step: step(st.Dev), windows: int((st.Size + window - 1) / window)}
	if n, err := f.cached(0, f.size); err != nil {
		return nil, fmt.Errorf("cachestat: %w", err)
	} else if n >= f.size {
		f.next = f.windows // there is nothing to do
	}
	for w := f.next; w < f.windows; w++ {
		if err := unix.Fadvise(fd, int64(w)*window, page, unix.FADV_DONTNEED); err != nil {
			return nil, fmt.Errorf("fadvise: %w", err)
		}
	}
	return f, nil
}

// page is the size of a page in bytes.
var page = int64(os.Getpagesize())

// step returns how much is read with one call: the kernel cuts off what exceeds both the read-ahead of the
// device and the size of its largest request.
func step(dev uint64) int {
	var kib int
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(dev), unix.Minor(dev))
	if p, err := os.ReadFile(name); err == nil {
		_, _ = fmt.Sscan(string(p), &kib)
	}
	return min(max(kib, 128), 1024) << 10
}

// follow looks how far the readers of the file are and reads ahead of them, if there is memory for unread
// bytes. It reports whether a reader has moved.
func (f *follower) follow(unread int64) (moved bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.file.Fd()), &st); err != nil {
		return false, err
	}
	if st.Nlink == 0 {
		f.next = f.windows // removed: only this process, and maybe a reader, keep its bytes
		return false, nil
	}
	if f.next == 0 { // nobody has begun to read
		if began, err := f.isReached(0); err != nil || !began {
			return false, err
		}
	}
	var ahead []int
	for _, w := range f.ahead {
		reached, err := f.isReached(w)
		if err != nil {
			return false, err
		}
		if !reached {
			ahead = append(ahead, w)
		}
	}
	n := len(f.ahead) - len(ahead)
	f.reached += n
	f.ahead, moved = ahead, n > 0
	for f.next < f.windows && len(f.ahead) < min(f.reached, depth) || f.next == 0 {
		if !enough(unread) {
			return moved, nil
		}
		if err := f.read(f.next); err != nil {
			return moved, err
		}
		reached, err := f.isReached(f.next)
		if err != nil {
			return moved, err
		}
		if reached {
			f.reached++
			moved = true
		} else {
			f.ahead = append(f.ahead, f.next)
		}
		f.next++
	}
	return moved, nil
}

// isReached reports whether a reader has read the first page of a window.
func (f *follower) isReached(w int) (bool, error) {
	n, err := f.cached(int64(w)*window, page)
	return n > 0, err
}

// cached returns how many bytes of n at off are in the page cache, rounded up to pages.
func (f *follower) cached(off, n int64) (int64, error) {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.file.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return int64(st.Cache) * page, err
}

// read begins to read a window without its first page, and does not wait for the disk.
func (f *follower) read(w int) error {
	off := int64(w)*window + page
	end := min(int64(w+1)*window, f.size)
	if off >= end {
		return nil
	}
	if n, err := f.cached(off, end-off); err != nil || n >= end-off {
		return err
	}
	for ; off < end; off += int64(f.step) {
		n := min(int64(f.step), end-off)
		if _, _, errno := unix.Syscall(unix.SYS_READAHEAD, f.file.Fd(), uintptr(off), uintptr(n)); errno != 0 {
			return fmt.Errorf("readahead: %w", errno)
		}
	}
	return nil
}

// maxPressure is the share of the last 10 seconds, in percent, in which a process waited for memory, from
// which nothing is read ahead.
const maxPressure = 5

// enough is available, but in tests, whose machine may be short of memory.
var enough = available

// available reports whether n more bytes of the page cache leave the node a quarter of its available memory, and no
// process waits for memory.
func available(n int64) bool {
	var some float64
	if p, err := os.ReadFile("/proc/pressure/memory"); err == nil { // not every kernel has it
		_, _ = fmt.Sscanf(string(p), "some avg10=%f", &some)
	}
	p, err := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(p), "MemAvailable:")
	var kib int64
	_, _ = fmt.Sscan(rest, &kib)
	return err == nil && some < maxPressure && n <= kib<<10/4*3
}

// enter moves this process into a memory cgroup; see Run.
func enter(dir string) error {
	if dir == "" {
		var err error
		if dir, err = unlimited("/sys/fs/cgroup"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("leave the memory cgroup of the daemon: %w", err)
	}
	return nil
}

// unlimited returns the root of the hierarchy of memory cgroups below dir.
func unlimited(dir string) (string, error) {
	err := fmt.Errorf("%s shows no memory cgroup without a limit: %w", dir, errdefs.ErrFailedPrecondition)
	first := filepath.Join(dir, "memory") // the first version of cgroups
	if p, rerr := os.ReadFile(filepath.Join(first, "memory.stat")); rerr == nil {
		_, rest, _ := strings.Cut(string(p), "hierarchical_memory_limit ")
		var limit int64
		if _, serr := fmt.Sscan(rest, &limit); serr != nil || limit < 1<<60 {
			return "", err
		}
		return first, nil
	}
	// A cgroup of the second version that is the root only of a namespace has a type.
	_, terr := os.Stat(filepath.Join(dir, "cgroup.type"))
	_, cerr := os.Stat(filepath.Join(dir, "cgroup.controllers"))
	if !errors.Is(terr, os.ErrNotExist) || cerr != nil {
		return "", err
	}
	return dir, nil
}
