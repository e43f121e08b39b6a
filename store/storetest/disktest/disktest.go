// Package disktest makes disks that fail as tests tell them to.
package disktest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A Disk is a file system on a disk that fails as it is told: it can lose power, fail writes and flushes, have bad
// sectors, and hang. It is a file of a FUSE file system below a loop device, so that what the kernel does about that
// is real.
type Disk struct {
	Dir string // where it is mounted

	t      testing.TB
	fstype string
	work   string // has the images
	loop   string
	server *fuse.Server
	*device
}

// New mounts a file system, such as "ext4" or "xfs", of so many bytes on dir, which is made if needed, until the end of
// the test.
func New(t testing.TB, fstype, dir string, size int64) *Disk {
	t.Helper()
	d := &Disk{Dir: dir, t: t, fstype: fstype, work: t.TempDir()}
	durable := filepath.Join(d.work, "durable")
	if err := errors.Join(os.WriteFile(durable, nil, 0o600), os.Truncate(durable, size), os.MkdirAll(dir, 0o700), os.MkdirAll(filepath.Join(d.work, "fuse"), 0o700)); err != nil {
		t.Fatal(err)
	}
	mkfs := []string{"mkfs." + fstype, "-q"}
	if fstype == "ext4" {
		mkfs = append(mkfs, "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")
	}
	run(t, append(mkfs, durable)...)
	d.attach()
	t.Cleanup(d.detach)
	return d
}

// Cut is a power cut: of what was written since the last flush, the 4 KiB blocks stay of which keep returns true, in
// the order of the writes. All that uses the file system must have ended. The file system is mounted again.
func (d *Disk) Cut(keep func() bool) {
	d.t.Helper()
	d.mu.Lock()
	pending := d.pending
	d.pending = nil
	for _, p := range pending {
		for off := p.off; off < p.off+p.n; off += block {
			if keep() {
				d.flush(extent{off, min(block, p.off+p.n-off)})
			}
		}
	}
	d.cut = true
	d.mu.Unlock()
	d.detach()
	d.attach()
}

// attach mounts what is durable.
func (d *Disk) attach() {
	d.t.Helper()
	now := filepath.Join(d.work, "now")
	durable := filepath.Join(d.work, "durable")
	run(d.t, "cp", "--sparse=always", durable, now)
	d.device = &device{bad: map[int64]bool{}}
	var err, err2 error
	d.durable, err = os.OpenFile(durable, os.O_RDWR, 0)
	d.now, err2 = os.OpenFile(now, os.O_RDWR, 0)
	if err = errors.Join(err, err2); err != nil {
		d.t.Fatal(err)
	}
	if d.server, err = fs.Mount(filepath.Join(d.work, "fuse"), &deviceDir{device: d.device}, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 512 << 10, FsName: "disk"},
	}); err != nil {
		d.t.Fatal(err)
	}
	d.loop = run(d.t, "losetup", "-f", "--show", filepath.Join(d.work, "fuse", "disk"))
	// One request of the loop device is one write of FUSE: of several, it would report only an error of the first one.
	if err := os.WriteFile("/sys/block/"+filepath.Base(d.loop)+"/queue/max_sectors_kb", []byte("256"), 0); err != nil {
		d.t.Fatal(err)
	}
	options := "noatime"
	if d.fstype == "xfs" {
		options += ",nouuid"
	}
	run(d.t, "mount", "-t", d.fstype, "-o", options, d.loop, d.Dir)
}

// detach unmounts the file system. Other processes may have copies of the mounts: what they keep goes with them.
func (d *Disk) detach() {
	d.Resume()
	for _, dir := range []string{d.Dir, filepath.Join(d.work, "fuse")} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			d.t.Errorf("unmount %s: %v", dir, err)
		}
		if dir == d.Dir {
			run(d.t, "losetup", "-d", d.loop)
		}
	}
	gone := make(chan struct{})
	go func() { d.server.Wait(); close(gone) }()
	select {
	case <-gone:
		_ = errors.Join(d.now.Close(), d.durable.Close())
	case <-time.After(10 * time.Second): // the files stay open, and what is attached next has others
	}
}

// block is the unit in which a device loses bytes, in bytes.
const block = 4 << 10

// An extent is a range of a device, in bytes.
type extent struct{ off, n int64 }

// A device is the file below the loop device.
type device struct {
	fs.Inode
	now, durable *os.File // what reads return, and what a power cut leaves

	mu          sync.Mutex // guards the following
	pending     []extent   // written since the last flush
	cut         bool       // what is written is lost
	bad         map[int64]bool
	failWrites  int // that fail from now on
	failFlushes int
	hangs       chan struct{} // closed by Resume; nil: it does not hang
}

// FailWrites makes the next n writes fail.
func (d *device) FailWrites(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failWrites = n
}

// FailFlushes makes the next n flushes fail.
func (d *device) FailFlushes(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failFlushes = n
}

// Hang makes all calls wait for Resume.
func (d *device) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs == nil {
		d.hangs = make(chan struct{})
	}
}

// Resume ends Hang.
func (d *device) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs != nil {
		close(d.hangs)
		d.hangs = nil
	}
}

// Spoil makes a block of a file, that with the byte at off, unreadable until it is written again.
func (d *Disk) Spoil(path string, off int64) {
	d.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	at := int32(off / block)
	if err := f.Sync(); err != nil {
		d.t.Fatal(err)
	}
	const fibmap = 1 // FIBMAP
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&at))); errno != 0 || at == 0 {
		d.t.Fatalf("%s has no block at %d: %v", path, off, errno)
	}
	d.mu.Lock()
	d.bad[int64(at)] = true
	d.mu.Unlock()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		d.t.Fatal(err)
	}
}

// flush makes a written range durable. The caller holds mu.
func (d *device) flush(e extent) error {
	_, err := io.Copy(io.NewOffsetWriter(d.durable, e.off), io.NewSectionReader(d.now, e.off, e.n))
	return err
}

// begin waits while the disk hangs.
func (d *device) begin() {
	d.mu.Lock()
	hangs := d.hangs
	d.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
}

// Getattr implements fs.NodeGetattrer.
func (d *device) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	info, err := d.now.Stat()
	if err != nil {
		return fs.ToErrno(err)
	}
	out.Mode, out.Size, out.Nlink = syscall.S_IFREG|0o600, uint64(info.Size()), 1
	return 0
}

// Open implements fs.NodeOpener.
func (d *device) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return &struct{}{}, fuse.FOPEN_DIRECT_IO, 0
}

// Read implements fs.NodeReader.
func (d *device) Read(_ context.Context, _ fs.FileHandle, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.begin()
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := off / block; at*block < off+int64(len(b)); at++ {
		if d.bad[at] {
			return nil, syscall.EIO
		}
	}
	n, err := d.now.ReadAt(b, off)
	if err != nil && err != io.EOF {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(b[:n]), 0
}

// Write implements fs.NodeWriter.
func (d *device) Write(_ context.Context, _ fs.FileHandle, b []byte, off int64) (uint32, syscall.Errno) {
	d.begin()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failWrites > 0 {
		d.failWrites--
		return 0, syscall.EIO
	}
	if _, err := d.now.WriteAt(b, off); err != nil {
		return 0, fs.ToErrno(err)
	}
	for at := off / block; at*block < off+int64(len(b)); at++ {
		delete(d.bad, at)
	}
	if !d.cut {
		d.pending = append(d.pending, extent{off, int64(len(b))})
	}
	return uint32(len(b)), 0
}

// Fsync implements fs.NodeFsyncer.
func (d *device) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.begin()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failFlushes > 0 {
		d.failFlushes--
		return syscall.EIO
	}
	for _, e := range d.pending {
		if err := d.flush(e); err != nil {
			return fs.ToErrno(err)
		}
	}
	d.pending = nil
	return 0
}

// deviceDir is the directory of a device.
type deviceDir struct {
	fs.Inode
	device *device
}

// OnAdd implements fs.NodeOnAdder.
func (r *deviceDir) OnAdd(ctx context.Context) {
	r.AddChild("disk", r.NewPersistentInode(ctx, r.device, fs.StableAttr{Mode: syscall.S_IFREG, Ino: 2}), true)
}

// run runs a program and returns its output.
func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
