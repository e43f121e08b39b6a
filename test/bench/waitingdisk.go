package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// serveWaitingDisk shows an image as the file disk in a directory, until standard input ends. Each line of it is the
// time for each read, in nanoseconds.
func serveWaitingDisk(image, dir string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var wait atomic.Int64
	server, err := fs.Mount(dir, &waitingDir{wait: &wait, image: f}, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, MaxWrite: 512 << 10, MaxBackground: 1024, ExtraCapabilities: fuse.CAP_ASYNC_DIO,
	}})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		var ns int64
		if _, err := fmt.Scanln(&ns); err != nil {
			return server.Unmount()
		}
		wait.Store(ns)
	}
}

// waitingDir is a directory with one file, the image of a waitingDisk.
type waitingDir struct {
	fs.Inode
	wait  *atomic.Int64 // for each read, in nanoseconds
	image *os.File
}

// OnAdd implements fs.NodeOnAdder.
func (d *waitingDir) OnAdd(ctx context.Context) {
	d.AddChild("disk", d.NewPersistentInode(ctx, &waitingFile{wait: d.wait, image: d.image}, fs.StableAttr{}), false)
}

type waitingFile struct {
	fs.Inode
	wait  *atomic.Int64 // for each read, in nanoseconds
	image *os.File
}

// Open implements fs.NodeOpener.
func (f *waitingFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Getattr implements fs.NodeGetattrer.
func (f *waitingFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	info, err := f.image.Stat()
	if err != nil {
		return fs.ToErrno(err)
	}
	out.Mode, out.Size = syscall.S_IFREG|0o600, uint64(info.Size())
	return 0
}

// Read implements fs.NodeReader.
func (f *waitingFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	// Not time.Sleep, which takes a millisecond at least while nothing else runs.
	rest := unix.NsecToTimespec(f.wait.Load())
	for unix.Nanosleep(&rest, &rest) == unix.EINTR {
	}
	return fuse.ReadResultFd(f.image.Fd(), off, len(dest)), 0
}

// Write implements fs.NodeWriter.
func (f *waitingFile) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	n, err := f.image.WriteAt(data, off)
	return uint32(n), fs.ToErrno(err)
}

// Fsync implements fs.NodeFsyncer. Nothing is to be kept.
func (f *waitingFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return 0 }
