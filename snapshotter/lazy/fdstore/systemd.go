package fdstore

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A service manager can store descriptors of a service and pass them at its next start.
// https://systemd.io/FILE_DESCRIPTOR_STORE/

// firstListenFD is the first descriptor that a service manager passes.
// https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html
const firstListenFD = 3

// maxListenFDs limits the number of passed descriptors.
const maxListenFDs = 1024

// ListenFiles returns the files passed by a service manager, by name. The arguments are the values
// of $LISTEN_PID, $LISTEN_FDS and $LISTEN_FDNAMES; if they are for another process, the result is
// empty. Child processes do not inherit the files. Call it once, early: a second call returns the
// same descriptor numbers, which may be other files then.
func ListenFiles(pid, fds, names string) (map[string]*os.File, error) {
	if p, err := strconv.Atoi(pid); err != nil || p != os.Getpid() {
		return nil, nil
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > maxListenFDs {
		return nil, fmt.Errorf("LISTEN_FDS %q is not a number from 0 to %d", fds, maxListenFDs)
	}
	all := map[string]*os.File{}
	list := strings.Split(names, ":")
	for i := range n {
		fd := firstListenFD + i
		unix.CloseOnExec(fd)
		name := "LISTEN_FD_" + strconv.Itoa(fd)
		if i < len(list) && list[i] != "" {
			name = list[i]
		}
		if all[name] != nil {
			_ = unix.Close(fd) // another copy of the same file
			continue
		}
		all[name] = os.NewFile(uintptr(fd), name)
	}
	return all, nil
}

// notify sends a state and files to the service manager and waits until it has received them.
func notify(address, state string, fds ...int) error {
	if err := notifyNow(address, state, fds...); err != nil {
		return err
	}
	// The barrier: the manager closes its end of the pipe when it processes this message.
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	err := errors.Join(notifyNow(address, "BARRIER=1", pipe[1]), unix.Close(pipe[1]))
	if err == nil {
		err = waitHangup(pipe[0])
	}
	return errors.Join(err, unix.Close(pipe[0]))
}

func notifyNow(address, state string, fds ...int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	limit := unix.NsecToTimeval(keeperTimeout.Nanoseconds())
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	if err == nil {
		// A name that begins with @ is in the abstract namespace.
		err = unix.Sendmsg(fd, []byte(state), oob, &unix.SockaddrUnix{Name: address}, 0)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("service manager at %s: %w", address, err)
	}
	return nil
}

// waitHangup waits until all other ends of a pipe are closed.
func waitHangup(fd int) error {
	deadline := time.Now().Add(keeperTimeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errors.New("service manager does not answer")
		}
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if n > 0 && p[0].Revents&unix.POLLHUP != 0 {
			return nil
		}
	}
}
