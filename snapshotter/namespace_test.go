package snapshotter

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaceVar is set in the process started by inNamespaces.
const namespaceVar = "BALLAST_TEST_NAMESPACES"

// inNamespaces runs the test program again in new mount and process namespaces, and ends this process
// with its exit code. The snapshotter looks for mounts of its snapshots in the mount tables of all
// processes: mounts of other tests that run meanwhile, and of other containers, must not count. In the
// new process it returns.
func inNamespaces() error {
	if os.Getenv(namespaceVar) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	runtime.LockOSThread() // Pdeathsig is sent when the starting thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), namespaceVar+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	case err != nil:
		return err
	}
	os.Exit(0)
	return nil
}
