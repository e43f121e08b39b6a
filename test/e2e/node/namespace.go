package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVar is the environment variable with the stage of a program that runs itself again.
const stageVar = "BALLAST_NODE_STAGE"

// Outermost reports whether this program was not started by Main.
func Outermost() bool { return os.Getenv(stageVar) == "" }

// passable is the mode of the directories of nodes, as of /var/lib: private directories below have
// their own modes, and the root of a user namespace must reach its containers.
const passable = 0o755

// Main returns f() as the exit code, called in new namespaces: it runs the program again, twice.
// The first child is process 1 of a new process namespace; it mounts /proc and /run and reaps
// orphans, such as containerd's shims. The second child calls f. When process 1 ends, the kernel
// ends all processes in the namespace.
//
//	func TestMain(m *testing.M) { os.Exit(node.Main(m.Run)) }
func Main(f func() int) int {
	switch os.Getenv(stageVar) {
	case "":
		return outer(again("init", os.Args[1:]), 0)
	case "init":
		return initProcess()
	}
	return f()
}

// outer runs process 1 in new namespaces, of which more are flags of clone, and forwards signals to it.
func outer(cmd *exec.Cmd, more uintptr) int {
	if os.Getuid() != 0 {
		fmt.Fprintln(cmd.Stderr, "node: mounts and containers need root")
		return 1
	}
	// One directory for all temporary files, so that nothing is left if the program is killed.
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		fmt.Fprintln(cmd.Stderr, "node:", err)
		return 1
	}
	if os.Getenv("BALLAST_KEEP") == "" {
		defer os.RemoveAll(dir)
	}
	if err := os.Chmod(dir, passable); err != nil {
		fmt.Fprintln(cmd.Stderr, "node:", err)
		return 1
	}
	runtime.LockOSThread() // Pdeathsig is sent when the starting thread ends
	defer runtime.UnlockOSThread()
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | more,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(cmd.Stderr, "node: new namespaces:", err)
		return 1
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// A terminal sends SIGINT to the whole process group.
			if s != syscall.SIGINT {
				_ = cmd.Process.Signal(s)
			}
		case err := <-done:
			return exitCode(err)
		}
	}
}

// InNamespaces returns a command that runs this program with arguments in new namespaces of mounts, processes,
// network and the name of the machine, below a process 1 as that of Main. There, Main calls f, and [Inside] is true.
func InNamespaces(args ...string) *exec.Cmd {
	cmd := again("init", args)
	cmd.Stdin, cmd.Stdout = nil, nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS}
	return cmd
}

// Inside reports whether this program runs in the namespaces of Main.
func Inside() bool { return os.Getenv(stageVar) == "run" }

// initProcess is process 1: it makes the private mounts, starts the program and reaps orphans.
func initProcess() int {
	if err := privateMounts(); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	if err := loopbackUp(); err != nil {
		fmt.Fprintln(os.Stderr, "node: start the loopback device:", err)
		return 1
	}
	cmd := again("run", os.Args[1:])
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			if s != syscall.SIGINT {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "node: wait:", err)
			return 1
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal())
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus()
		}
	}
}

func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return nil
}

// loopbackUp starts the loopback device of a new network namespace.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil || r.Uint16()&unix.IFF_UP != 0 {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

// again returns a command that runs this program with arguments.
func again(stage string, args []string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(slices.Clone(os.Environ()), stageVar+"="+stage)
	return cmd
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	default:
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
}
