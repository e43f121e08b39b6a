package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs until it is stopped.
type Process struct {
	Log string // path of its standard output and error

	name string
	argv []string
	env  []string
	done chan struct{} // closed when it has ended
	err  error         // of Wait, valid after done is closed

	mu      sync.Mutex // guards the following
	cmd     *exec.Cmd
	stopped bool // by Kill or Stop
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
	p := begin(t, name, log, env, files, argv)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// startAgain is how long after its end a program of Keep is started again.
const startAgain = time.Second

// Keep is Start for a program that is started again whenever it ends by itself, as a kubelet does with the containers
// of pods: on a busy machine a controller loses its lease, and an API server gives up its start. The test fails if
// the program ends with a code that is none of codes, such as that of a panic.
func Keep(t TB, name, log string, env []string, codes []int, argv ...string) *Process {
	t.Helper()
	p := begin(t, name, log, env, nil, argv)
	go func() {
		defer close(p.done)
		for {
			p.err = p.cmd.Wait()
			if p.isStopped() {
				return
			}
			t.Logf("%s has ended by itself: %v", name, p.err)
			if !slices.Contains(codes, p.cmd.ProcessState.ExitCode()) {
				t.Errorf("%s has ended with %v", name, p.err)
			}
			time.Sleep(startAgain)
			if err := p.run(nil); err != nil {
				if !errors.Is(err, errStopped) {
					t.Errorf("start %s: %v", name, err)
				}
				return
			}
		}
	}()
	return p
}

// begin starts a program, which the caller waits for, and registers its clean-up.
func begin(t TB, name, log string, env []string, files []*os.File, argv []string) *Process {
	t.Helper()
	p := &Process{Log: log, name: name, argv: argv, env: env, done: make(chan struct{})}
	if err := p.run(files); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.Stop(t)
		if t.Failed() {
			t.Logf("---- end of the log of %s ----\n%s", name, p.Tail(60))
		}
	})
	return p
}

var errStopped = errors.New("stopped")

// run starts the program, unless it was stopped.
func (p *Process) run(files []*os.File) error {
	f, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.Env = append(os.Environ(), p.env...)
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C stops the test, which stops the program
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errStopped
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	return nil
}

func (p *Process) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// signal sends a signal to the program, which is not started again.
func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	_ = p.cmd.Process.Signal(s)
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
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

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
	p.signal(syscall.SIGKILL)
	<-p.done
}

// limit is how long a program may take to start or to stop, and a command to end, even on a busy machine.
const limit = 10 * time.Minute

// Stop terminates the program and waits for its end. If that takes more than limit, the program is
// killed and the test fails.
func (p *Process) Stop(t TB) {
	t.Helper()
	p.signal(syscall.SIGTERM)
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

// Command runs a command for at most ten minutes.
func Command(ctx context.Context, env []string, argv ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as that of a Process
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return Result{stdout.String(), stderr.String(), err}
}
