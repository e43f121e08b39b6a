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

// The service manager can store files of a service and pass them when it starts it again.
// https://systemd.io/FILE_DESCRIPTOR_STORE/

// firstListenFD is the first file that a service manager passes.
// https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html
const firstListenFD = 3

// maxListenFDs is how many files are looked at.
const maxListenFDs = 1024

// ListenFiles returns the files that a service manager passed, by name. The arguments are
// the values of $LISTEN_PID, $LISTEN_FDS and $LISTEN_FDNAMES; if they are not meant for this
// process, there are none. The files are not passed on to children. It is to be called once,
// early: a second call returns the same descriptors again, which may be others then.
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
			_ = unix.Close(fd) // two copies of one
			continue
		}
		all[name] = os.NewFile(uintptr(fd), name)
	}
	return all, nil
}

// notify sends a state and files to the service manager, and waits until it has them.
func notify(address, state string, fds ...int) error {
	if err := notifyNow(address, state, fds...); err != nil {
		return err
	}
	// The barrier: the manager closes its end of a pipe when it has come to it.
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
		// A name that begins with @ is one without a file.
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
