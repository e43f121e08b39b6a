package lazy

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// fsType is the type of lazy mounts in mountinfo.
const fsType = "fuse.ballast"

// initTimeout is how long to wait for the kernel's first message.
const initTimeout = 10 * time.Second

// mountFuse mounts at dir and returns the non-blocking connection.
func mountFuse(dir string) (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse (is the fuse module loaded?): %w", err)
	}
	// allow_other: containers with their own user and mount namespaces also read.
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxRead)
	if err := unix.Mount("ballast", dir, fsType, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount fuse: %w", err), unix.Close(fd))
	}
	// Not earlier: the poller cannot wait for a device that is not mounted yet.
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// handshake answers the INIT message and describes the new mount.
func handshake(dir string, o Options, f *os.File) (*record, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	if err := f.SetReadDeadline(time.Now().Add(initTimeout)); err != nil {
		return nil, err
	}
	buf := make([]byte, requestBuffer)
	n, err := readRequest(raw, buf)
	if err != nil {
		return nil, fmt.Errorf("wait for the INIT message: %w", err)
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if n < inHeader || opcode(buf) != opInit {
		return nil, fmt.Errorf("first message of the kernel is not INIT but %d", opcode(buf))
	}
	po := protocolOptions(o.Log)
	po.IDMappedMount = !o.NoIDMap
	if o.NoPassthrough {
		po.DisabledCapabilities |= fuse.CAP_PASSTHROUGH
	}
	in, out := append([]byte(nil), buf[:n]...), make([]byte, maxAnswer)
	proto := fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(), po)
	k, status := proto.HandleRequest([][]byte{in}, [][]byte{out})
	if !status.Ok() || k <= outHeader {
		return nil, fmt.Errorf("answer the INIT message: %w", syscall.Errno(status))
	}
	if err := write(raw, out[:k]); err != nil {
		return nil, fmt.Errorf("answer the INIT message: %w", err)
	}
	mi, ok, err := findMount(dir)
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("%s is not among the mounts", dir), err)
	}
	id := make([]byte, 8)
	rand.Read(id)
	const flags, flags2 = outHeader + 12, outHeader + 32 // in InitOut
	agreed := uint64(binary.NativeEndian.Uint32(out[flags:])) | uint64(binary.NativeEndian.Uint32(out[flags2:]))<<32
	return &record{
		Version: recordVersion, ID: hex.EncodeToString(id), Dir: dir, Dev: mi.dev, Init: in,
		Passthrough: agreed&fuse.CAP_PASSTHROUGH != 0,
		NoIDMap:     agreed&fuse.CAP_ALLOW_IDMAP == 0,
		Resend:      resend(raw) == nil, // there are no requests to resend yet
	}, nil
}

// pollName is a file in the root that the protocol code provides for this purpose.
const pollName = ".go-fuse-epoll-hack"

// forgetPoll makes the kernel ask once whether files support poll, and never again. Otherwise
// opening a file of the mount in this process would deadlock: the runtime polls new files and would
// wait for an answer that this process has to give.
func forgetPoll(dir string) error {
	fd, err := unix.Open(filepath.Join(dir, pollName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the file to poll: %w", err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}, 0)
	return errors.Join(err, unix.Close(fd))
}

// A mountPoint describes a mount.
type mountPoint struct{ dev, fsType string }

// findMount returns the topmost mount at dir, without accessing it.
func findMount(dir string) (found mountPoint, ok bool, err error) {
	at, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
	if err != nil || len(at) == 0 {
		return found, false, err
	}
	m := at[len(at)-1]
	return mountPoint{dev: fmt.Sprintf("%d:%d", m.Major, m.Minor), fsType: m.FSType}, true, nil
}

// isAlive returns nil if f is the connection of the mount described by rec, and the mount is at its
// directory and not aborted.
func isAlive(f *os.File, rec *record) error {
	mi, ok, err := findMount(rec.Dir)
	if err != nil {
		return err
	}
	if !ok || mi.fsType != fsType || mi.dev != rec.Dev {
		return fmt.Errorf("mount %s is no longer at %s", rec.ID, rec.Dir)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var dead bool
	var wrong error
	var fdinfo []byte
	err = raw.Control(func(fd uintptr) {
		wrong = isFuse(int(fd))
		dead = fdstore.Dead(int(fd))
		fdinfo, _ = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(fd)))
	})
	if err := errors.Join(err, wrong); err != nil {
		return fmt.Errorf("kept descriptor: %w", err)
	}
	if dead {
		return fmt.Errorf("connection of mount %s is aborted", rec.ID)
	}
	// Newer kernels name the connection: the minor number of the device.
	_, minor, _ := strings.Cut(rec.Dev, ":")
	for line := range strings.Lines(string(fdinfo)) {
		if id, ok := strings.CutPrefix(line, "fuse_connection:"); ok && strings.TrimSpace(id) != minor {
			return fmt.Errorf("the kept descriptor is the connection of another mount")
		}
	}
	return nil
}

// isFuse returns an error if fd is not /dev/fuse.
func isFuse(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) {
		return errors.New("not /dev/fuse")
	}
	return nil
}

// detach removes the lazy mounts at dir, dead or alive. It returns an error if another file system
// is mounted there.
func detach(dir string, log *slog.Logger) error {
	for range 100 {
		mi, ok, err := findMount(dir)
		if err != nil || !ok {
			return err
		}
		if mi.fsType != fsType {
			return fmt.Errorf("a file system of type %s is mounted there; unmount it", mi.fsType)
		}
		log.Warn("detach a lazy mount that is not served; reads through it return errors", "dir", dir, "device", mi.dev)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	return fmt.Errorf("%s has more than 100 mounts", dir)
}

// setReadAhead sets the read-ahead of the kernel. FUSE itself can ask for at most 128 KiB.
func setReadAhead(dev string, bytes int64) error {
	return os.WriteFile(filepath.Join("/sys/class/bdi", dev, "read_ahead_kb"), strconv.AppendInt(nil, bytes>>10, 10), 0)
}

// Requests FUSE_DEV_IOC_BACKING_OPEN and FUSE_DEV_IOC_BACKING_CLOSE.
// https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fuse.h
const (
	backingOpen  = 0x4010e501 // _IOW(229, 1, 16 bytes)
	backingClose = 0x4004e502 // _IOW(229, 2, uint32)
)

// register returns a backing id for a file.
func (d *device) register(f *os.File) (id int32, err error) {
	file, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno syscall.Errno
	err = errors.Join(file.Control(func(backing uintptr) {
		err = d.raw.Control(func(fd uintptr) {
			m := fuse.BackingMap{Fd: int32(backing)}
			var r uintptr
			r, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, backingOpen, uintptr(unsafe.Pointer(&m)))
			id = int32(r)
		})
	}), err)
	if err == nil && errno != 0 {
		err = errno
	}
	if err == nil && id <= 0 {
		err = fmt.Errorf("backing id %d", id)
	}
	return id, err
}

// unregister frees a backing id. It has no effect if the connection has ended.
func (d *device) unregister(id int32) {
	_ = d.raw.Control(func(fd uintptr) {
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, backingClose, uintptr(unsafe.Pointer(&id)))
	})
}
