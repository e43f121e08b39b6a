// Package systemctl does for a test what systemctl does for "ballast setup", without systemd, with real programs and
// units.
//
// It emulates start, stop, restart and try-restart (ExecStart, Type=notify, Wants of services, KillMode=process),
// is-active, enable and disable (the links), daemon-reload and clean. A socket unit is only marked as active: the
// daemon binds its port itself. Programs that end are not restarted.
//
// The program of a test is the emulated systemctl, see [Main].
package systemctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

const (
	// Units is the directory of units.
	Units = "/etc/systemd/system"

	// State is the directory of logs, and of the file with the calls that a test reads.
	State = "/run/systemd/emulated"

	manager  = "/run/systemd/system" // exists if systemd runs
	socket   = State + "/private"
	patience = 8 * time.Minute
)

// Unit returns a unit that starts a command line with a PATH as distributions do: it stops only its own process, not
// containers.
func Unit(description, command, path string) string {
	return fmt.Sprintf(`[Unit]
Description=%s
[Service]
ExecStart=%s
Environment=PATH=%s
Type=notify
KillMode=process
[Install]
WantedBy=multi-user.target
`, description, command, path)
}

// First arguments that make the program of a test the systemctl.
const (
	local  = "systemctl-without-systemd"
	remote = "systemctl-of-the-machine"
)

// Main executes the command line of a systemctl, ends the program if there is one, and otherwise returns.
func Main() {
	if len(os.Args) < 3 || os.Args[1] != local && os.Args[1] != remote {
		return
	}
	do := run
	if os.Args[1] == remote {
		do = ask
	}
	if err := do(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Install installs the systemctl of a machine. With served, it asks the one that Serve serves: a service that a pod
// itself starts would end with the pod.
func Install(served bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	which := local
	if served {
		which = remote
	}
	for _, d := range []string{manager, State, Units, "/usr/local/sbin"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile("/usr/local/sbin/systemctl", fmt.Appendf(nil, "#!/bin/sh\nexec %s %s \"$@\"\n", self, which), 0o755)
}

// Serve executes the command lines of the installed systemctl in the root of its caller, until stop is called.
func Serve() (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var args []string
			if err = json.NewDecoder(conn).Decode(&args); err == nil {
				err = run(args)
			}
			if err != nil {
				_, _ = io.WriteString(conn, err.Error()) // the caller then fails without a reason
			}
			conn.Close()
		}
	}()
	return func() {
		l.Close()
		<-done
	}, nil
}

// ask has a command line executed by Serve.
func ask(args []string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := json.NewEncoder(c).Encode(args); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if err == nil && len(answer) > 0 {
		err = errors.New(string(answer))
	}
	return err
}

// run executes a command line.
func run(args []string) error {
	if err := logCall(args); err != nil {
		return err
	}
	verb, units, now := args[0], args[1:], false
	if verb != "is-active" {
		jobs, err := os.OpenFile(filepath.Join(State, "jobs"), os.O_CREATE|os.O_RDWR, 0o644)
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
	f, err := os.OpenFile(filepath.Join(State, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
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
		return Stop(u)
	case "try-restart":
		if !Active(u) {
			return nil
		}
		return errors.Join(Stop(u), startUnit(u))
	case "restart":
		return errors.Join(Stop(u), startUnit(u))
	case "is-active":
		if !Active(u) {
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
		dir := filepath.Join(Units, target+".wants")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		err = os.Symlink(unitFile(u), filepath.Join(dir, u))
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	case "disable":
		links, err := filepath.Glob(filepath.Join(Units, "*.wants", u))
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
			return Stop(u)
		}
		return nil
	}
	return errors.New("not emulated")
}

// unitFile returns the file of a unit: that of a package, if there is no other.
func unitFile(u string) string {
	p := filepath.Join(Units, u)
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

func pidFile(u string) string { return filepath.Join(State, u+".pid") }

// PID returns the process id of a unit, or 0.
func PID(u string) int {
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

// Active reports whether a unit is active.
func Active(u string) bool {
	if strings.HasSuffix(u, ".socket") {
		_, err := os.Stat(pidFile(u))
		return err == nil
	}
	return PID(u) != 0
}

// Stop stops a unit.
func Stop(u string) error {
	pid := PID(u)
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
		if PID(u) == 0 {
			return os.Remove(pidFile(u))
		}
	}
	return errors.New("it does not end")
}

func startUnit(u string) error {
	if Active(u) {
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
	log, err := os.OpenFile(filepath.Join(State, u+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	notify := filepath.Join(State, u+".notify")
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
