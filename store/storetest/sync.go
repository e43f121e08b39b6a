package storetest

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A SlowDisk is a file system on which slow calls block until Release: at first every fsync of a file.
type SlowDisk struct {
	Dir     string
	Syncing <-chan string // receives the path, relative to Dir, when a slow call begins

	syncing chan string
	end     chan struct{}
	slow    atomic.Pointer[func(op, path string) bool]
}

// NewSlowDisk mounts a SlowDisk until the end of the test.
func NewSlowDisk(t testing.TB) *SlowDisk {
	t.Helper()
	d := &SlowDisk{Dir: t.TempDir(), syncing: make(chan string, 1000), end: make(chan struct{})}
	d.Syncing = d.syncing
	d.Slow(func(op, _ string) bool { return op == "fsync" })
	loopback := &fs.LoopbackRoot{Path: t.TempDir()}
	root := &slowNode{&fs.LoopbackNode{RootData: loopback}, d}
	loopback.RootNode = root
	server, err := fs.Mount(d.Dir, root, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Release()
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Slow decides which calls are slow. It is called for each fsync, create, unlink and readdir, by the name of
// the call and the path.
func (d *SlowDisk) Slow(slow func(op, path string) bool) { d.slow.Store(&slow) }

// Release unblocks all slow calls, also later ones.
func (d *SlowDisk) Release() {
	select {
	case <-d.end:
	default:
		close(d.end)
	}
}

// slowNode is a file or directory of a SlowDisk.
type slowNode struct {
	*fs.LoopbackNode
	disk *SlowDisk
}

// WrapChild implements fs.NodeWrapChilder.
func (n *slowNode) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &slowNode{child.(*fs.LoopbackNode), n.disk}
}

// begin blocks while a call is slow.
func (n *slowNode) begin(op, name string) {
	path := filepath.Join(n.Path(nil), name)
	if (*n.disk.slow.Load())(op, path) {
		n.disk.syncing <- path
		<-n.disk.end
	}
}

// Fsync implements fs.NodeFsyncer.
func (n *slowNode) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	file, ok := f.(fs.FileFsyncer)
	if !ok {
		return 0 // a directory
	}
	n.begin("fsync", "")
	return file.Fsync(ctx, flags)
}

// Create implements fs.NodeCreater.
func (n *slowNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.begin("create", name)
	return n.LoopbackNode.Create(ctx, name, flags, mode, out)
}

// Unlink implements fs.NodeUnlinker.
func (n *slowNode) Unlink(ctx context.Context, name string) syscall.Errno {
	n.begin("unlink", name)
	return n.LoopbackNode.Unlink(ctx, name)
}

// OpendirHandle implements fs.NodeOpendirHandler.
func (n *slowNode) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, flags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if d, ok := h.(fs.FileReaddirenter); ok {
		h = &slowDir{d, n}
	}
	return h, flags, errno
}

// slowDir is an open directory.
type slowDir struct {
	fs.FileReaddirenter
	node *slowNode
}

// Readdirent implements fs.FileReaddirenter.
func (d *slowDir) Readdirent(ctx context.Context) (*fuse.DirEntry, syscall.Errno) {
	d.node.begin("readdir", "")
	return d.FileReaddirenter.Readdirent(ctx)
}

// Releasedir implements fs.FileReleasedirer.
func (d *slowDir) Releasedir(ctx context.Context, flags uint32) {
	if r, ok := d.FileReaddirenter.(fs.FileReleasedirer); ok {
		r.Releasedir(ctx, flags)
	}
}

// WithinLimit fails the test unless do returns within a time that is long enough for a busy machine.
func WithinLimit(t testing.TB, what string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s waits for the disk", what)
	}
}
