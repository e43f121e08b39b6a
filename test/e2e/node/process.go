package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program that runs until it is stopped.
type Process struct {
	Log string // path of its standard output and error

	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of Wait, valid after done is closed
}

// Start starts a program. Its clean-up stops the program, and prints the end of its log if the test
// failed. A restarted program appends to its log.
func Start(t TB, name, log string, env []string, argv ...string) *Process {
	t.Helper()
	return start(t, name, log, env, nil, argv...)
}

// start is Start with files that the program inherits from descriptor 3 on.
func start(t TB, name, log string, env []string, files []*os.File, argv ...string) *Process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatalf("log of %s: %v", name, err)
	}
	defer f.Close()
	p := &Process{Log: log, name: name, done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.ExtraFiles = files
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C stops the test, which stops the program
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop(t)
		if t.Failed() {
			t.Logf("---- end of the log of %s ----\n%s", name, p.Tail(60))
		}
	})
	return p
}

// Tick is the unit of /proc/PID/stat: 1/USER_HZ, the same on all architectures of Go.
const Tick = time.Second / 100

// CPU returns the CPU time of a process. With children, it includes programs that the process has
// started and waited for, such as a decompressor.
func CPU(pid int, children bool) (sum time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, can have spaces. utime, stime, cutime and cstime are the fields 14 to 17.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[11:15]
	if !children {
		fields = fields[:2]
	}
	for _, f := range fields {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat of %d: %w", pid, err)
		}
		sum += time.Duration(ticks) * Tick
	}
	return sum, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running reports whether the program is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill kills the program and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// limit is how long a program may take to start or to stop, even on a busy machine.
const limit = 2 * time.Minute

// Stop terminates the program and waits for its end. If that takes more than limit, the program is
// killed and the test fails.
func (p *Process) Stop(t TB) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(limit):
		p.Kill()
		t.Errorf("%s did not stop within %v of SIGTERM", p.name, limit)
	}
}

// Tail returns the last n lines of the log without debug messages, shortened.
func (p *Process) Tail(n int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "loading plugin") || strings.Contains(line, "level=debug") || strings.Contains(line, "level=DEBUG") {
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		lines = append(lines, line[:min(len(line), 400)])
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// WaitReady calls ready about every 20 milliseconds until it returns nil. It fails the test if p
// ends, or after limit.
func (p *Process) WaitReady(t TB, ready func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended during startup: %v", p.name, p.err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready after %v: %v", p.name, limit, err)
		}
	}
}

// Result is the output of a command.
type Result struct {
	Stdout, Stderr string
	Err            error // nil if the exit code is 0
}

// Output returns both streams.
func (r Result) Output() string { return r.Stdout + r.Stderr }

// Command runs a command for at most five minutes.
func Command(ctx context.Context, env []string, argv ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return Result{stdout.String(), stderr.String(), err}
}
