package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// A waitingDisk is a block device that takes a time for each request, whatever its size, and any number of requests
// at once, as network volumes do: a loop device over a file whose server sleeps. The file system on it has one file.
type waitingDisk struct {
	server io.Writer // of lines with the time for each read, in nanoseconds
	device string    // below /dev
	file   string
}

// newWaitingDisk makes a disk with a file of size bytes, which write makes.
//
// The server is a process with its own mounts, and the loop device goes with the last mount of it. Otherwise, when
// all processes are killed, the kernel would unmount the disk, and wait for its server, before it closes the server's
// connection: a device that nobody can detach, at which each later search for a free one hangs.
func (b *bench) newWaitingDisk(size int64, write func(path string) error) *waitingDisk {
	d := &waitingDisk{}
	dir, err := os.MkdirTemp(b.node.Dir, "waits")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	run := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			b.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	image, top, mount := filepath.Join(dir, "image"), filepath.Join(dir, "fuse"), filepath.Join(dir, "mnt")
	for _, name := range []string{top, mount} {
		if err := os.Mkdir(name, 0o700); err != nil {
			b.t.Fatalf("%v", err)
		}
	}
	run("truncate", "-s", fmt.Sprint(size+size/8+64<<20), image)
	run("mkfs.ext4", "-q", image)
	server := taskCommand("waitingdisk", image, top)
	server.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	in, err := server.StdinPipe()
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 1)) // it serves
	}
	if err != nil {
		b.t.Fatalf("server of the disk: %v", err)
	}
	d.server = in
	b.t.Cleanup(func() { in.Close(); server.Wait() })
	loop := run("losetup", "--find", "--show", "--direct-io=on", fmt.Sprintf("/proc/%d/root%s/disk", server.Process.Pid, top))
	d.device = strings.TrimPrefix(loop, "/dev/")
	b.t.Cleanup(func() {
		if exec.Command("mountpoint", "-q", mount).Run() == nil {
			run("umount", mount)
		}
	})
	defer run("losetup", "--detach", loop) // when it is not mounted any more
	run("mount", "-o", "noatime", loop, mount)
	d.file = filepath.Join(mount, modelFile)
	if err := write(d.file); err != nil {
		b.t.Fatalf("%v", err)
	}
	flush(mount)
	return d
}

// waits sets the time for each read.
func (d *waitingDisk) waits(b *bench, wait time.Duration) {
	if _, err := fmt.Fprintln(d.server, int64(wait)); err != nil {
		b.t.Fatalf("%v", err)
	}
}

// readAhead sets the read-ahead of the disk, in KiB.
func (d *waitingDisk) readAhead(b *bench, kib int) {
	if err := os.WriteFile(filepath.Join("/sys/block", d.device, "queue/read_ahead_kb"), []byte(fmt.Sprint(kib)), 0); err != nil {
		b.t.Fatalf("%v", err)
	}
}

// ahead reads a file ahead in order, until it is killed.
func ahead(path string) error {
	const step = 2 << 20
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for off := int64(0); off < info.Size(); off += step {
		if _, _, errno := unix.Syscall(unix.SYS_READAHEAD, f.Fd(), uintptr(off), step); errno != 0 {
			return errno
		}
	}
	select {}
}

// waitLoaders are the loaders that are measured on disks that wait. The last one reads a part only: each page is a
// request.
var waitLoaders = []string{"read", "read16", "mmap", "tensors", "random"}

// The helpers beside which a loader is measured.
const (
	helperNone    = ""
	helperAhead   = "ahead"   // reads the file ahead in order, whether it is read or not
	helperBallast = "ballast" // the process of ballastd that follows the loader
)

// diskWaits measures how loaders read a complete model from a disk that takes a time for each request, alone, beside
// a process that reads the file ahead in order, and beside the process of ballastd that follows loaders. Without a
// time, and with one below half a millisecond, ballastd leaves the disk to the kernel: there, the last ratio is what
// it avoids.
func (b *bench) diskWaits() {
	size := b.size / 8
	d := b.newWaitingDisk(size, func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(f, safetensors(size, 400, false))
		return err
	})
	t := table{fmt.Sprintf("A file of %s, not in memory, on a disk that waits for each request: seconds alone; ratio beside a process that reads it ahead in order; ratio beside that of ballastd",
		sizeOf(size)), [][]string{{"loader"}}}
	rows := map[string][]string{}
	for _, kib := range []int{128, 4096} {
		for _, wait := range []time.Duration{0, 200 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
			t.rows[0] = append(t.rows[0], fmt.Sprintf("%v, read_ahead_kb %d", wait, kib))
			d.readAhead(b, kib)
			for _, loader := range waitLoaders {
				d.waits(b, wait)
				var alone, beside, ballast series
				for range b.rounds {
					alone.add(b.loadWaiting(d, loader, size, helperNone))
					beside.add(b.loadWaiting(d, loader, size, helperAhead))
					ballast.add(b.loadWaiting(d, loader, size, helperBallast))
				}
				d.waits(b, 0)
				_, text := ratio(beside, alone)
				_, ours := ratio(ballast, alone)
				rows[loader] = append(rows[loader], fmt.Sprintf("%s; %s; %s", seconds(alone.median()), text, ours))
			}
		}
	}
	for _, loader := range waitLoaders {
		t.rows = append(t.rows, append([]string{loaderNamed(loader).what}, rows[loader]...))
	}
	b.addTable(t)
}

// loadWaiting reads the file of a disk beside a helper.
func (b *bench) loadWaiting(d *waitingDisk, loader string, size int64, helper string) time.Duration {
	drop()
	b.touch(2 * size)
	switch helper {
	case helperAhead:
		defer b.startHelper(taskCommand("ahead", d.file))()
	case helperBallast:
		f, err := os.Open(d.file)
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		defer f.Close()
		cmd := exec.Command(node.Binary(b.t, "ballastd"), "read-ahead", "--files=1")
		cmd.ExtraFiles = []*os.File{f}
		stdin, err := cmd.StdinPipe() // it ends with it
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		defer stdin.Close()
		defer b.startHelper(cmd)()
		time.Sleep(200 * time.Millisecond) // it starts with the mount, long before a loader
	}
	return b.task("load", loader, d.file)
}

// startHelper starts a helper, and returns what kills it.
func (b *bench) startHelper(cmd *exec.Cmd) (stop func()) {
	if err := cmd.Start(); err != nil {
		b.t.Fatalf("%v", err)
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }
}
