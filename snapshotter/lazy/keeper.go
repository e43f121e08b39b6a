package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Holder says who keeps the connection while the daemon does not run. The service manager is
// preferred to a process of ours; both may be given, and a connection is taken from whoever
// has it.
type Holder struct {
	// NotifySocket is the address ($NOTIFY_SOCKET) of a service manager that stores files
	// for this service: $FDSTORE is above 0. Empty means that there is none.
	NotifySocket string
	// Files are the files that the service manager had stored; see ListenFiles. Start
	// closes those that are its own, and leaves the others alone.
	Files map[string]*os.File
	// Socket is the path of the socket of the holder process. Empty means that there is
	// no such process.
	Socket string
	// Command starts a holder process, one that calls RunHolder. "--fd 3 --socket <path>"
	// is appended; file 3 is the listening socket.
	Command []string
}

// Time for one request to a keeper, and between two attempts to start a holder.
const (
	keeperTimeout = 10 * time.Second
	respawnDelay  = time.Second
)

// A keeper talks to who keeps the connection.
type keeper struct {
	Holder
	log  *slog.Logger
	stop context.CancelFunc // ends the watch
	done sync.WaitGroup     // the watch
	old  []string           // names that were kept at the start
}

func newKeeper(h Holder, log *slog.Logger) *keeper {
	return &keeper{Holder: h, log: log, stop: func() {}}
}

// take returns copies of all connections that are kept, by name. The keepers keep theirs.
func (k *keeper) take(ctx context.Context) (_ map[string]*os.File, err error) {
	all := map[string]*os.File{}
	if k.Socket != "" {
		held, err := k.ask(ctx, "take", nil)
		if err != nil {
			k.log.Info("no holder answers", "socket", k.Socket, "err", err)
		}
		for name, f := range held {
			all[name] = f
		}
	}
	for name, f := range k.Files {
		if !strings.HasPrefix(name, namePrefix) {
			continue
		}
		if other := all[name]; other != nil {
			_ = other.Close() // another copy
		}
		all[name] = f
	}
	k.Files = nil
	for name, f := range all {
		k.old = append(k.old, name)
		if err := prepare(f); err != nil {
			k.log.Warn("what was kept is no connection", "name", name, "err", err)
			_ = f.Close() // not used
			delete(all, name)
			continue
		}
		if all[name], err = repoll(f); err != nil {
			delete(all, name)
		}
	}
	return all, err
}

// prepare checks that f is /dev/fuse, and has it not block.
func prepare(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		if err = isFuse(int(fd)); err == nil {
			err = unix.SetNonblock(int(fd), true)
		}
	})
	return errors.Join(cerr, err)
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

// repoll returns the file anew, so that the runtime sees that it does not block.
func repoll(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	copied := -1
	cerr := raw.Control(func(fd uintptr) { copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(cerr, err, f.Close()); err != nil {
		if copied >= 0 {
			err = errors.Join(err, unix.Close(copied))
		}
		return nil, err
	}
	return os.NewFile(uintptr(copied), "/dev/fuse"), nil
}

// keep hands the connection over, and sees to it that it stays kept.
func (k *keeper) keep(ctx context.Context, name string, raw syscall.RawConn) error {
	switch {
	case k.NotifySocket != "":
		var err error
		cerr := raw.Control(func(fd uintptr) {
			// FDPOLL=0: the manager would wake up for every request. It does not
			// remove what is dead then; drop does.
			err = notify(k.NotifySocket, "FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", int(fd))
		})
		return errors.Join(cerr, err)
	case k.Socket == "":
		return errors.New("no holder is configured")
	}
	c, err := k.hand(ctx, name, raw)
	if err != nil {
		return err
	}
	watch, stop := context.WithCancel(context.Background())
	k.stop = stop
	k.done.Add(1)
	go func() {
		defer k.done.Done()
		k.watch(watch, c, name, raw)
	}()
	return nil
}

// watch replaces a holder that died, until ctx ends.
func (k *keeper) watch(ctx context.Context, c *net.UnixConn, name string, raw syscall.RawConn) {
	for {
		wake := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		_, _ = c.Read(make([]byte, 1)) // it never says anything by itself
		wake()
		_ = c.Close() // tells the holder nothing
		for c = nil; c == nil; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(respawnDelay):
			}
			var err error
			if c, err = k.hand(ctx, name, raw); err != nil && ctx.Err() == nil {
				k.log.Error("the holder is gone, and there is no new one: the lazy mount will not outlive this process", "err", err)
			}
		}
		k.log.Warn("the holder was gone; a new one keeps the lazy mount")
	}
}

// hand gives the connection to the holder, and starts one if none answers. The socket that is
// returned ends with the holder.
func (k *keeper) hand(ctx context.Context, name string, raw syscall.RawConn) (c *net.UnixConn, err error) {
	if c, err = k.dial(); err == nil {
		if err = handOver(c, name, raw); err == nil {
			return c, nil
		}
		_ = c.Close() // of no use
	}
	if len(k.Command) == 0 {
		return nil, fmt.Errorf("holder at %s: %w", k.Socket, err)
	}
	started, err := k.spawn()
	if err != nil {
		return nil, fmt.Errorf("start the holder: %w", err)
	}
	if c, err = k.dial(); err == nil {
		if err = handOver(c, name, raw); err == nil {
			return c, nil
		}
		_ = c.Close() // of no use
	}
	// Whatever was started, it is not a holder.
	if gone := started.Kill(); gone != nil && !errors.Is(gone, os.ErrProcessDone) {
		err = errors.Join(err, gone)
	}
	return nil, fmt.Errorf("%q does not act as a holder: %w", k.Command, err)
}

func handOver(c *net.UnixConn, name string, raw syscall.RawConn) (err error) {
	cerr := raw.Control(func(fd uintptr) { _, err = exchange(c, "keep "+name, []int{int(fd)}) })
	return errors.Join(cerr, err)
}

// dial connects to the holder.
func (k *keeper) dial() (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: k.Socket})
}

// ask makes one request on a connection of its own.
func (k *keeper) ask(_ context.Context, message string, fds []int) (map[string]*os.File, error) {
	c, err := k.dial()
	if err != nil {
		return nil, err
	}
	held, err := exchange(c, message, fds)
	return held, errors.Join(err, c.Close())
}

// spawn starts a holder in a session of its own. It outlives this process.
func (k *keeper) spawn() (*os.Process, error) {
	// A command that runs something else, say the daemon, must not start itself without end.
	if slices.Contains(os.Args, socketFlag) && slices.Contains(os.Args, fdFlag) {
		return nil, fmt.Errorf("this process was to be a holder itself: command %q is wrong", k.Command)
	}
	if err := os.MkdirAll(filepath.Dir(k.Socket), 0o700); err != nil {
		return nil, err
	}
	l, err := listenPacket(k.Socket)
	if err != nil {
		return nil, err
	}
	defer l.Close() // the holder has it then
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.Command(k.Command[0], append(k.Command[1:len(k.Command):len(k.Command)], fdFlag, "3", socketFlag, k.Socket)...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k.log.Info("holder of the lazy mount is started", "pid", cmd.Process.Pid, "socket", k.Socket)
	// It has no owner, on purpose: it lives on. Waiting is for the case that it dies first.
	go func() { _ = cmd.Wait() }()
	return cmd.Process, nil
}

// What is appended to the command of a holder.
const (
	fdFlag     = "--fd"
	socketFlag = "--socket"
)

// listenPacket listens at a path that only root can open; what was there is replaced.
func listenPacket(path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: fresh})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// drop has the keepers let a connection go.
func (k *keeper) drop(ctx context.Context, name string) {
	k.unwatch()
	if k.NotifySocket != "" {
		if err := notify(k.NotifySocket, "FDSTOREREMOVE=1\nFDNAME="+name); err != nil {
			k.log.Warn("the service manager keeps a connection that is no longer needed", "name", name, "err", err)
		}
	}
	if k.Socket != "" {
		if _, err := k.ask(ctx, "drop "+name, nil); err != nil {
			k.log.Debug("no holder to drop a connection", "name", name, "err", err)
		}
	}
}

// dropAll has them let go what they had at the start.
func (k *keeper) dropAll(ctx context.Context) {
	for _, name := range k.old {
		k.drop(ctx, name)
	}
}

func (k *keeper) unwatch() {
	k.stop()
	k.done.Wait()
}

// close ends talking to the keepers. They keep what they have.
func (k *keeper) close() error {
	k.unwatch()
	var errs []error
	for name, f := range k.Files {
		if strings.HasPrefix(name, namePrefix) {
			errs = append(errs, f.Close())
		}
	}
	k.Files = nil
	return errors.Join(errs...)
}
