package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// deliver is the control for reads of missing bytes: it fetches ranges over 8 connections, hashes each
// byte once, writes it to a file that a FUSE mount shows while it grows, and finally calls fsync. The
// reader is another process with a loader; deliver prints its cost. If given the name of a file, it
// writes a CPU profile there.
func deliver(url, length, dir, profile string) error {
	size, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	if profile != "" {
		out, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	start := time.Now()
	f, err := os.Create(filepath.Join(dir, "delivered"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	d := newDelivery(f, size)
	mnt, unmount, err := d.mount(dir)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	fetched := make(chan error, 1)
	go func() { fetched <- d.fetch(url) }()
	out, err := taskCommand("load", loaders[0].name, filepath.Join(mnt, modelFile)).Output()
	read := time.Since(start)
	if err = errors.Join(err, <-fetched, f.Sync(), unmount(), f.Close()); err != nil {
		return err
	}
	reader, _, err := parseCost(string(out))
	fmt.Println(read, reader.cpu)
	return err
}

// A delivery is a file that is being fetched, and a FUSE file that shows it.
type delivery struct {
	fs.Inode
	file  *os.File
	size  int64
	ready []chan struct{} // of each chunk; closed when it is in the file, or when err is set
	err   error
}

func newDelivery(f *os.File, size int64) *delivery {
	d := &delivery{file: f, size: size}
	for range (size + rangeSize - 1) / rangeSize {
		d.ready = append(d.ready, make(chan struct{}))
	}
	return d
}

// fetch fetches the file.
func (d *delivery) fetch(url string) error {
	got := make([]bool, len(d.ready))
	err := fetchRanges(url, d.size, func(p []byte, off int64) error {
		sha256.Sum256(p)
		if _, err := d.file.WriteAt(p, off); err != nil {
			return err
		}
		got[off/rangeSize] = true
		close(d.ready[off/rangeSize])
		return nil
	})
	if d.err = err; err != nil {
		for i := range got {
			if !got[i] {
				close(d.ready[i])
			}
		}
	}
	return err
}

// readAhead is the kernel's read-ahead in bytes, the default of ballast.
const readAhead = 2 << 20

// mount mounts the file below dir.
func (d *delivery) mount(dir string) (mnt string, unmount func() error, err error) {
	if mnt, err = os.MkdirTemp(dir, "deliver"); err != nil {
		return "", nil, err
	}
	root := &fs.Inode{}
	server, err := fs.Mount(mnt, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, MaxBackground: 256, DisableXAttrs: true, ExplicitDataCacheControl: true, DisableSplice: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild(modelFile, root.NewPersistentInode(ctx, d, fs.StableAttr{Mode: syscall.S_IFREG}), false)
		},
	})
	if err != nil {
		return "", nil, err
	}
	for fd := 3; fd < 64; fd++ {
		unix.CloseOnExec(fd) // with a copy of the connection, the reader would wait for itself if this process ends
	}
	unmount = func() error { return errors.Join(server.Unmount(), os.Remove(mnt)) }
	var st unix.Stat_t
	if err = unix.Stat(mnt, &st); err == nil {
		bdi := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
		err = os.WriteFile(bdi, []byte(strconv.Itoa(readAhead>>10)), 0)
	}
	if err != nil {
		return "", nil, errors.Join(err, unmount())
	}
	return mnt, unmount, nil
}

var (
	_ fs.NodeGetattrer = (*delivery)(nil)
	_ fs.NodeOpener    = (*delivery)(nil)
	_ fs.NodeReader    = (*delivery)(nil)
)

// Getattr returns the final size of the file.
func (d *delivery) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = syscall.S_IFREG|0o444, uint64(d.size)
	return 0
}

// Open lets the kernel keep the pages.
func (d *delivery) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

// Read waits for the chunks.
func (d *delivery) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n := min(int64(len(dest)), d.size-off)
	if n <= 0 {
		return fuse.ReadResultData(nil), 0
	}
	for i := off / rangeSize; i <= (off+n-1)/rangeSize; i++ {
		<-d.ready[i]
	}
	if d.err != nil {
		return nil, syscall.EIO
	}
	if _, err := d.file.ReadAt(dest[:n], off); err != nil {
		return nil, syscall.EIO
	}
	return fuse.ReadResultData(dest[:n]), 0
}
