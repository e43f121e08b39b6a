package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say who keeps descriptors while the daemon does not run. The service manager is
// preferred to a process of ours; both may be given, and a descriptor is taken from whoever
// has it. The zero value means that nobody keeps any.
type Options struct {
	// NotifySocket is the address ($NOTIFY_SOCKET) of a service manager that stores files
	// for this service: $FDSTORE is above 0. Empty means that there is none.
	NotifySocket string
	// Files are the files that the service manager had stored; see ListenFiles. A Keeper
	// closes those that are its own, and leaves the others alone.
	Files map[string]*os.File
	// Socket is the path of the socket of the holder process. Empty means that there is
	// no such process.
	Socket string
	// Command starts a holder process, one that calls RunHolder. "--fd 3 --socket <path>"
	// is appended; file 3 is the listening socket.
	Command []string
}

// Who keeps descriptors.
const (
	ByManager = "service manager"
	ByProcess = "process"
	ByNobody  = "none"
)

// Time for one request to a keeper, and the pauses between two attempts to hand something over.
const (
	keeperTimeout = 10 * time.Second
	firstRetry    = time.Second
	lastRetry     = time.Minute
)

// A Keeper talks to who keeps descriptors.
type Keeper struct {
	Options
	prefix string // of the names that are ours
	log    *slog.Logger
	stop   context.CancelFunc // ends the watch
	done   sync.WaitGroup     // the watch
	kept   atomic.Bool        // somebody has the descriptor of Keep
	old    []string           // names that were kept at the start
}

// New returns a Keeper of the descriptors whose names begin with prefix.
func New(o Options, prefix string, log *slog.Logger) *Keeper {
	return &Keeper{Options: o, prefix: prefix, log: log, stop: func() {}}
}

// Take returns copies of all descriptors that are kept, by name; they do not block. Who keeps
// them goes on to.
func (k *Keeper) Take() map[string]*os.File {
	all := map[string]*os.File{}
	if k.Socket != "" {
		held, err := k.ask("take")
		switch {
		case errors.Is(err, fs.ErrNotExist): // the first start
			k.log.Debug("there is no holder yet", "socket", k.Socket)
		case err != nil:
			k.log.Info("no holder answers", "socket", k.Socket, "err", err)
		}
		maps.Copy(all, held)
	}
	for name, f := range k.Files {
		if !strings.HasPrefix(name, k.prefix) {
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
		var err error
		if all[name], err = repoll(f); err != nil {
			k.log.Warn("what was kept can not be used", "name", name, "err", err)
			delete(all, name)
		}
	}
	return all
}

// repoll returns the file anew, as one that does not block, so that the runtime waits for it.
func repoll(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	copied := -1
	cerr := raw.Control(func(fd uintptr) {
		if err = unix.SetNonblock(int(fd), true); err == nil {
			copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err = errors.Join(cerr, err, f.Close()); err != nil {
		if copied >= 0 {
			err = errors.Join(err, unix.Close(copied))
		}
		return nil, err
	}
	return os.NewFile(uintptr(copied), f.Name()), nil
}

// Dead says whether a descriptor has lost its other end.
func Dead(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0
}

// Keep hands a descriptor over, and sees to it that it stays kept until Unwatch: a holder that
// died is replaced, and what failed is tried again. The error is that of the first attempt.
func (k *Keeper) Keep(name string, raw syscall.RawConn) error {
	if k.NotifySocket == "" && k.Socket == "" {
		return errors.New("no holder is configured")
	}
	c, err := k.hand(name, raw)
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	k.done.Go(func() { k.watch(ctx, c, name, raw) })
	return err
}

// KeepNow makes a last attempt, after Unwatch, to hand over what nobody keeps, and says whether
// somebody keeps it.
func (k *Keeper) KeepNow(name string, raw syscall.RawConn) bool {
	if !k.kept.Load() && (k.NotifySocket != "" || k.Socket != "") {
		c, err := k.hand(name, raw)
		if err != nil {
			k.log.Error("nobody keeps what is served", "name", name, "err", err)
		}
		if c != nil {
			_ = c.Close() // tells the holder nothing
		}
	}
	return k.kept.Load()
}

// watch replaces a holder that died, or that could not be reached, until ctx ends. c is the
// connection to it; nil if there is none.
func (k *Keeper) watch(ctx context.Context, c *net.UnixConn, name string, raw syscall.RawConn) {
	for {
		if c != nil {
			wake := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
			_, _ = c.Read(make([]byte, 1)) // it never says anything by itself
			wake()
			_ = c.Close() // tells the holder nothing
			if ctx.Err() != nil {
				return
			}
			k.kept.Store(false)
		}
		for wait := firstRetry; !k.kept.Load(); wait = min(2*wait, lastRetry) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			var err error
			if c, err = k.hand(name, raw); err != nil && ctx.Err() == nil {
				k.log.Error("nobody keeps what is served: it will not outlive this process; trying again", "wait", wait, "err", err)
			} else if err == nil {
				k.log.Warn("nobody kept what is served for a time; now somebody does")
			}
		}
		if c == nil { // the service manager has it, and does not die
			return
		}
	}
}

// Status says who is to keep the descriptor of Keep, one of the constants above, and whether he does.
func (k *Keeper) Status() (by string, kept bool) {
	switch {
	case k.NotifySocket != "":
		return ByManager, k.kept.Load()
	case k.Socket == "":
		return ByNobody, false
	}
	c, err := k.dial()
	if err == nil {
		_ = c.Close() // somebody answers
	}
	return ByProcess, err == nil && k.kept.Load()
}

// hand gives a descriptor to the service manager, if there is one, or to the holder, starting one
// if none answers. The socket that is returned ends with the holder.
func (k *Keeper) hand(name string, raw syscall.RawConn) (c *net.UnixConn, err error) {
	defer func() { k.kept.Store(err == nil) }()
	if k.NotifySocket != "" {
		cerr := raw.Control(func(fd uintptr) {
			// FDPOLL=0: the manager would wake up for every request. It does not
			// remove what is dead then; Drop does.
			err = notify(k.NotifySocket, "FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", int(fd))
		})
		return nil, errors.Join(cerr, err)
	}
	if c, err = k.dial(); err == nil {
		if err = handOver(c, name, raw); err == nil {
			return c, nil
		}
		_ = c.Close() // of no use
	}
	if len(k.Command) == 0 {
		return nil, fmt.Errorf("holder at %s: %w", k.Socket, err)
	}
	c, started, err := k.spawn()
	if err != nil {
		return nil, fmt.Errorf("start the holder: %w", err)
	}
	if err = handOver(c, name, raw); err == nil {
		return c, nil
	}
	_ = c.Close() // of no use
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
func (k *Keeper) dial() (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: k.Socket})
}

// ask makes one request on a connection of its own.
func (k *Keeper) ask(message string) (map[string]*os.File, error) {
	c, err := k.dial()
	if err != nil {
		return nil, err
	}
	held, err := exchange(c, message, nil)
	return held, errors.Join(err, c.Close())
}

// spawn starts a holder in a session of its own, which outlives this process, and returns a
// connection to it. That is made first: the holder ends when nobody waits for it.
func (k *Keeper) spawn() (*net.UnixConn, *os.Process, error) {
	// A command that runs something else, say the daemon, must not start itself without end.
	if slices.Contains(os.Args, socketFlag) && slices.Contains(os.Args, fdFlag) {
		return nil, nil, fmt.Errorf("this process was to be a holder itself: command %q is wrong", k.Command)
	}
	if err := os.MkdirAll(filepath.Dir(k.Socket), 0o700); err != nil {
		return nil, nil, err
	}
	l, err := listenPacket(k.Socket)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close() // the holder has it then
	file, err := l.File()
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	c, err := k.dial()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(k.Command[0], append(k.Command[1:len(k.Command):len(k.Command)], fdFlag, "3", socketFlag, k.Socket)...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	k.log.Info("holder is started", "pid", cmd.Process.Pid, "socket", k.Socket)
	// It has no owner, on purpose: it lives on. Waiting is for the case that it dies first.
	go func() { _ = cmd.Wait() }()
	return c, cmd.Process, nil
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

// Drop has them let a descriptor go.
func (k *Keeper) Drop(name string) {
	k.Unwatch()
	if k.NotifySocket != "" {
		if err := notify(k.NotifySocket, "FDSTOREREMOVE=1\nFDNAME="+name); err != nil {
			k.log.Warn("the service manager keeps a descriptor that is no longer needed", "name", name, "err", err)
		}
	}
	if k.Socket != "" {
		if _, err := k.ask("drop " + name); err != nil {
			k.log.Debug("no holder to drop a descriptor", "name", name, "err", err)
		}
	}
}

// DropAll has them let go what they had at the start.
func (k *Keeper) DropAll() {
	for _, name := range k.old {
		k.Drop(name)
	}
}

// Unwatch ends seeing to it that a descriptor stays kept.
func (k *Keeper) Unwatch() {
	k.stop()
	k.done.Wait()
}

// Close ends talking to them. They keep what they have.
func (k *Keeper) Close() error {
	k.Unwatch()
	var errs []error
	for name, f := range k.Files {
		if strings.HasPrefix(name, k.prefix) {
			errs = append(errs, f.Close())
		}
	}
	k.Files = nil
	return errors.Join(errs...)
}
