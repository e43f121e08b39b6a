package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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

// Options configure where descriptors are kept while the daemon does not run. The zero value means
// that they are not kept.
type Options struct {
	// Socket is the path of the holder's socket. Empty means that there is no holder.
	Socket string
	// Command starts a holder process that calls RunHolder, if no holder answers. "--fd 3 --socket
	// <path>" is appended; file 3 is the listening socket. Empty means that the holder is started by
	// something else.
	Command []string
	// Wait is how long Take waits for a holder that should have descriptors and does not answer: a
	// service manager may be restarting it.
	Wait time.Duration
}

// Who keeps descriptors; see Keeper.Status.
const (
	ByProcess = "process"
	ByNobody  = "none"
)

// Timeout of one request, and pauses between attempts to hand over a descriptor.
const (
	keeperTimeout = 10 * time.Second
	firstRetry    = time.Second
	lastRetry     = time.Minute
	pollInterval  = 50 * time.Millisecond // while Take waits
)

// A Keeper hands descriptors to the holder, and takes them back.
type Keeper struct {
	Options
	log  *slog.Logger
	stop context.CancelFunc // ends the watch
	done sync.WaitGroup     // the watch
	kept atomic.Bool        // the descriptor of Keep is kept
	old  []string           // names of descriptors kept at the start
}

// New returns a Keeper. It starts nothing.
func New(o Options, log *slog.Logger) *Keeper {
	return &Keeper{Options: o, log: log, stop: func() {}}
}

// Take returns non-blocking copies of all kept descriptors, by name, and their mounts, by name and
// MountSuffix. The originals stay kept. It waits for a holder only if descriptors are expected.
func (k *Keeper) Take(expected bool) map[string]*os.File {
	all := map[string]*os.File{}
	if k.Socket != "" {
		held, err := k.ask("take")
		for end := time.Now().Add(k.Wait); expected && err != nil && time.Now().Before(end); held, err = k.ask("take") {
			time.Sleep(pollInterval)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the first start
			k.log.Debug("no holder is running", "socket", k.Socket)
		case err != nil:
			k.log.Info("holder does not answer", "socket", k.Socket, "err", err)
		}
		for name, fd := range held {
			all[name] = os.NewFile(uintptr(fd), name)
		}
	}
	for name, f := range all {
		k.old = append(k.old, name)
		if strings.HasSuffix(name, MountSuffix) {
			continue // nothing can be read from it
		}
		var err error
		if all[name], err = repoll(f); err != nil {
			k.log.Warn("kept descriptor cannot be used", "name", name, "err", err)
			delete(all, name)
		}
	}
	return all
}

// repoll reopens the file as a non-blocking one, so that the runtime polls it.
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

// Dead reports whether the other end of a descriptor is closed.
func Dead(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0
}

// Keep hands over a descriptor and makes sure that it stays kept until Unwatch: a dead holder is
// replaced, and failed attempts are repeated. The error is that of the first attempt.
func (k *Keeper) Keep(name string, raw syscall.RawConn) error {
	if k.Socket == "" {
		return errors.New("no holder is configured")
	}
	c, err := k.hand(name, raw)
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	k.done.Go(func() { k.watch(ctx, c, name, raw) })
	return err
}

// KeepNow makes a last attempt, after Unwatch, to hand over a descriptor that is not kept, and
// reports whether it is kept.
func (k *Keeper) KeepNow(name string, raw syscall.RawConn) bool {
	if !k.kept.Load() && k.Socket != "" {
		c, err := k.hand(name, raw)
		if err != nil {
			k.log.Error("descriptor is not kept", "name", name, "err", err)
		}
		if c != nil {
			_ = c.Close() // the holder does not act on it
		}
	}
	return k.kept.Load()
}

// KeepMount hands over a mount that belongs to the kept descriptor of a name.
func (k *Keeper) KeepMount(name string, mount int) error {
	c, err := k.dial()
	if err != nil {
		return err
	}
	_, err = exchange(c, "mount "+name, []int{mount})
	return errors.Join(err, c.Close())
}

// watch replaces a holder that died or could not be reached, until ctx ends. c is the connection to
// the holder, or nil.
func (k *Keeper) watch(ctx context.Context, c *net.UnixConn, name string, raw syscall.RawConn) {
	for {
		if c != nil {
			wake := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
			_, _ = c.Read(make([]byte, 1)) // returns when the holder dies: it never sends unasked
			wake()
			_ = c.Close() // the holder does not act on it
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
				k.log.Error("descriptor is not kept and ends with this process; trying again", "wait", wait, "err", err)
			} else if err == nil {
				k.log.Warn("descriptor is kept again")
			}
		}
	}
}

// Status returns the keeper of the descriptor of Keep, one of the constants above, and whether the
// descriptor is kept.
func (k *Keeper) Status() (by string, kept bool) {
	if k.Socket == "" {
		return ByNobody, false
	}
	c, err := k.dial()
	if err == nil {
		_ = c.Close() // it answers
	}
	return ByProcess, err == nil && k.kept.Load()
}

// hand gives a descriptor to the holder, which it starts if needed. The returned connection ends
// with the holder.
func (k *Keeper) hand(name string, raw syscall.RawConn) (c *net.UnixConn, err error) {
	defer func() { k.kept.Store(err == nil) }()
	if c, err = k.dial(); err == nil {
		if err = handOver(c, name, raw); err == nil {
			return c, nil
		}
		_ = c.Close() // unusable
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
	_ = c.Close() // unusable
	// The started process is not a holder.
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

// ask sends one request on a new connection.
func (k *Keeper) ask(message string) (map[string]int, error) {
	c, err := k.dial()
	if err != nil {
		return nil, err
	}
	held, err := exchange(c, message, nil)
	return held, errors.Join(err, c.Close())
}

// spawn starts a holder in its own session, so that it outlives this process, and returns a
// connection to it. It connects first, because the holder ends without clients.
func (k *Keeper) spawn() (*net.UnixConn, *os.Process, error) {
	// A wrong command, such as the daemon itself, must not start itself endlessly.
	if slices.Contains(os.Args, socketFlag) && slices.Contains(os.Args, fdFlag) {
		return nil, nil, fmt.Errorf("this process was started as a holder: command %q is wrong", k.Command)
	}
	if err := os.MkdirAll(filepath.Dir(k.Socket), 0o700); err != nil {
		return nil, nil, err
	}
	l, err := listenPacket(k.Socket)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close() // the holder has a copy
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
	k.log.Info("holder started", "pid", cmd.Process.Pid, "socket", k.Socket)
	// The holder outlives this process; Wait reaps it if it ends earlier.
	go func() { _ = cmd.Wait() }()
	return c, cmd.Process, nil
}

// Flags appended to the command of a holder.
const (
	fdFlag     = "--fd"
	socketFlag = "--socket"
)

// listenPacket listens at a path that only root can open, replacing an existing socket.
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

// Drop makes the holder drop a descriptor.
func (k *Keeper) Drop(name string) {
	k.Unwatch()
	if k.Socket != "" {
		if _, err := k.ask("drop " + name); err != nil {
			k.log.Debug("no holder to drop a descriptor", "name", name, "err", err)
		}
	}
}

// DropAll drops the descriptors that were kept at the start.
func (k *Keeper) DropAll() {
	for _, name := range k.old {
		k.Drop(name)
	}
}

// Unwatch stops the retries of Keep.
func (k *Keeper) Unwatch() {
	k.stop()
	k.done.Wait()
}
