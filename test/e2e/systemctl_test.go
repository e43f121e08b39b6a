package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// systemctlArg makes the test program a systemctl without systemd: it does what "ballast setup" needs,
// with real programs and units. It emulates start, stop, restart and try-restart (ExecStart, Type=notify, Wants of
// services, KillMode=process), is-active, enable and disable (the links), daemon-reload and clean. A socket unit
// is only marked as active: the daemon binds its port itself. Programs that end are not restarted.
const systemctlArg = "systemctl-without-systemd"

const (
	unitsDir   = "/etc/systemd/system"
	managerDir = "/run/systemd/system" // exists if systemd runs
	stateOf    = "/run/systemd/emulated"
)

// systemctl executes a command line.
func systemctl(args []string) error {
	if err := os.MkdirAll(stateOf, 0o755); err != nil {
		return err
	}
	if err := logCall(args); err != nil {
		return err
	}
	verb, units, now := args[0], args[1:], false
	if verb != "is-active" {
		jobs, err := os.OpenFile(filepath.Join(stateOf, "jobs"), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		defer jobs.Close()
		if err := syscall.Flock(int(jobs.Fd()), syscall.LOCK_EX); err != nil { // one job at a time; that of a killed setup continues
			return err
		}
	}
	units = slices.DeleteFunc(units, func(s string) bool {
		now = now || s == "--now"
		return strings.HasPrefix(s, "--")
	})
	for _, u := range units {
		if !strings.Contains(u, ".") {
			u += ".service"
		}
		if err := oneUnit(verb, u, now); err != nil {
			return fmt.Errorf("%s %s: %w", verb, u, err)
		}
	}
	return nil
}

// logCall adds a line to the calls that a test reads.
func logCall(args []string) error {
	f, err := os.OpenFile(filepath.Join(stateOf, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, strings.Join(args, " "))
	return errors.Join(err, f.Close())
}

func oneUnit(verb, u string, now bool) error {
	switch verb {
	case "start":
		return startUnit(u)
	case "stop":
		return stopUnit(u)
	case "try-restart":
		if !active(u) {
			return nil
		}
		return errors.Join(stopUnit(u), startUnit(u))
	case "restart":
		return errors.Join(stopUnit(u), startUnit(u))
	case "is-active":
		if !active(u) {
			return errors.New("inactive")
		}
		return nil
	case "clean":
		return nil
	case "enable":
		target, err := setting(u, "WantedBy")
		if err != nil {
			return err
		}
		dir := filepath.Join(unitsDir, target+".wants")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		err = os.Symlink(unitFile(u), filepath.Join(dir, u))
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	case "disable":
		links, err := filepath.Glob(filepath.Join(unitsDir, "*.wants", u))
		if err != nil {
			return err
		}
		for _, l := range links {
			if err := os.Remove(l); err != nil {
				return err
			}
			_ = os.Remove(filepath.Dir(l)) // if it is empty
		}
		if now {
			return stopUnit(u)
		}
		return nil
	}
	return errors.New("not emulated")
}

// unitFile returns the file of a unit: that of a package, if there is no other.
func unitFile(u string) string {
	p := filepath.Join(unitsDir, u)
	if _, err := os.Stat(p); err != nil {
		return filepath.Join("/usr/lib/systemd/system", u)
	}
	return p
}

// settings returns the values of a setting of a unit.
func settings(u, key string) (values []string, err error) {
	p, err := os.ReadFile(unitFile(u))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(p)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			values = append(values, v)
		}
	}
	return values, nil
}

// setting returns the first value of a setting of a unit.
func setting(u, key string) (string, error) {
	values, err := settings(u, key)
	if err == nil && len(values) == 0 {
		err = fmt.Errorf("no %s in %s", key, u)
	}
	if err != nil {
		return "", err
	}
	return values[0], nil
}

func pidFile(u string) string { return filepath.Join(stateOf, u+".pid") }

// pidOf returns the process id of a unit, or 0.
func pidOf(u string) int {
	p, err := os.ReadFile(pidFile(u))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(p))
	if err != nil {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		return 0
	}
	return pid
}

func active(u string) bool {
	if strings.HasSuffix(u, ".socket") {
		_, err := os.Stat(pidFile(u))
		return err == nil
	}
	return pidOf(u) != 0
}

func stopUnit(u string) error {
	pid := pidOf(u)
	if pid == 0 {
		err := os.Remove(pidFile(u))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if pidOf(u) == 0 {
			return os.Remove(pidFile(u))
		}
	}
	return errors.New("it does not end")
}

func startUnit(u string) error {
	if active(u) {
		return nil
	}
	if strings.HasSuffix(u, ".socket") {
		return os.WriteFile(pidFile(u), nil, 0o644)
	}
	wants, err := settings(u, "Wants")
	if err != nil {
		return err
	}
	for _, other := range wants {
		if _, err := os.Stat(unitFile(other)); err != nil || strings.HasSuffix(other, ".socket") {
			continue
		}
		if err := startUnit(other); err != nil {
			return fmt.Errorf("%s: %w", other, err)
		}
	}
	line, err := setting(u, "ExecStart")
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(stateOf, u+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	notify := filepath.Join(stateOf, u+".notify")
	_ = os.Remove(notify) // of the previous start
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	argv := strings.Fields(line)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NOTIFY_SOCKET=" + notify}
	if tools, err := setting(u, "Environment"); err == nil {
		cmd.Env = append(cmd.Env, tools)
	}
	cmd.Stdout, cmd.Stderr = log, log
	// The caller may be in another root; a service manager starts programs in its own.
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true, Chroot: "/proc/1/root"}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(pidFile(u), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return err
	}
	return started(cmd, conn)
}

// started waits until a program reports that it is ready.
func started(cmd *exec.Cmd, conn *net.UnixConn) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ready := make(chan error, 1)
	go func() {
		p := make([]byte, 4096)
		for {
			n, err := conn.Read(p)
			if err != nil || strings.Contains(string(p[:n]), "READY=1") {
				ready <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("it ended: %v", err)
	case err := <-ready:
		return err
	case <-time.After(patience):
		return errors.New("it does not say that it is ready")
	}
}
