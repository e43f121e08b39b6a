// Package durabletest kills a process at its calls that change the disk: the process asks the test before each
// such call (seccomp user notification). So the points are those of the real program on a real file system.
package durabletest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trapped are the system calls for which a child asks.
var trapped = []uint32{
	unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
	unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_FTRUNCATE, unix.SYS_LINKAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN,
}

// listener is the descriptor at which the child gets the socket for its listener.
const listener = 3

// Child makes this process, and those that it starts, ask the test that has started it with Kill before each call
// that changes the disk.
func Child() error {
	fd, err := trap()
	if err != nil {
		return err
	}
	return errors.Join(unix.Sendmsg(listener, []byte{0}, unix.UnixRights(fd), nil, 0), unix.Close(fd))
}

// trap makes all threads of the process ask before a trapped call, and returns the descriptor of the
// listener.
func trap() (int, error) {
	const load, jump, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	prog := []unix.SockFilter{{Code: load}} // the number of the call
	for i, nr := range trapped {
		prog = append(prog, unix.SockFilter{Code: jump, K: nr, Jt: uint8(len(trapped) - i)})
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: 0x7fff0000}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF}) // allow, ask
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return 0, fmt.Errorf("seccomp: %w", errno)
	}
	return int(fd), nil
}

// Kill runs a program that calls Child, and kills it, with the processes that it has started, before call number n;
// with n 0 it is not killed. It returns the number of calls, and the error of a program that was not killed.
func Kill(t testing.TB, cmd *exec.Cmd, n int) (calls int, err error) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "pair")
	defer unix.Close(pair[0])
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, m, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || m == 0 {
		t.Fatalf("child: %v, %v", err, cmd.Wait())
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	killed := false
	for {
		p := []unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); errors.Is(err, syscall.EINTR) {
			continue
		}
		if p[0].Revents&unix.POLLIN == 0 {
			break // all have ended
		}
		var asked struct {
			id    uint64
			other [72]byte
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&asked))); errno != 0 {
			continue
		}
		if calls++; calls == n {
			killed = true
			if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			continue
		}
		answer := struct {
			id    uint64
			val   int64
			errno int32
			flags uint32
		}{id: asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		// An error means that the child was killed meanwhile.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
	}
	err = cmd.Wait()
	if killed {
		return calls, nil
	}
	return calls, err
}
