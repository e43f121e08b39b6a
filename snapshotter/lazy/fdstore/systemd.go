package fdstore

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// Passed returns the descriptors passed by a service manager, by name. The arguments are the values
// of $LISTEN_PID, $LISTEN_FDS and $LISTEN_FDNAMES; if they are for another process, the result is
// empty. Child processes do not inherit the descriptors. Call it once, early: a second call returns
// the same numbers, which may be other files then.
func Passed(pid, fds, names string) (map[string]int, error) {
	if p, err := strconv.Atoi(pid); err != nil || p != os.Getpid() {
		return nil, nil
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > maxListenFDs {
		return nil, fmt.Errorf("LISTEN_FDS %q is not a number from 0 to %d", fds, maxListenFDs)
	}
	all := map[string]int{}
	list := strings.Split(names, ":")
	for i := range n {
		fd := firstListenFD + i
		unix.CloseOnExec(fd)
		name := "LISTEN_FD_" + strconv.Itoa(fd)
		if i < len(list) && list[i] != "" {
			name = list[i]
		}
		if _, ok := all[name]; ok {
			_ = unix.Close(fd) // another copy of the same file
			continue
		}
		all[name] = fd
	}
	return all, nil
}

// notifyTimeout limits how long a message waits for a service manager that is busy.
const notifyTimeout = 2 * time.Second

// notify sends a state and files to the service manager.
func notify(address, state string, fds ...int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	limit := unix.NsecToTimeval(notifyTimeout.Nanoseconds())
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
