package storetest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A SlowDisk is a file system on which fsync of a file blocks until Release.
type SlowDisk struct {
	Dir     string
	Syncing <-chan string // receives the path of the file, relative to Dir, when an fsync begins

	end chan struct{}
}

// NewSlowDisk mounts a SlowDisk until the end of the test.
func NewSlowDisk(t testing.TB) *SlowDisk {
	t.Helper()
	syncing := make(chan string, 1000)
	d := &SlowDisk{Dir: t.TempDir(), Syncing: syncing, end: make(chan struct{})}
	loopback := &fs.LoopbackRoot{Path: t.TempDir()}
	root := &slowNode{LoopbackNode: &fs.LoopbackNode{RootData: loopback}, syncing: syncing, end: d.end}
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

// Release unblocks all calls of fsync, also later ones.
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
	syncing chan<- string
	end     <-chan struct{}
}

// WrapChild implements fs.NodeWrapChilder.
func (n *slowNode) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &slowNode{LoopbackNode: child.(*fs.LoopbackNode), syncing: n.syncing, end: n.end}
}

// Fsync implements fs.NodeFsyncer.
func (n *slowNode) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	file, ok := f.(fs.FileFsyncer)
	if !ok {
		return 0 // a directory
	}
	n.syncing <- n.Path(nil)
	<-n.end
	return file.Fsync(ctx, flags)
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
		t.Errorf("%s waits for an fsync", what)
	}
}
