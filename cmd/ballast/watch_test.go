package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// programVariable makes the test binary the program.
const programVariable = "BALLAST_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" || len(os.Args) > 1 && os.Args[1] == "node" { // doctor starts "ballast node touch"
		main()
	}
	os.Exit(m.Run())
}

// A recorder keeps all that is written to it.
type recorder struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// terminal returns the side of a new terminal that a program uses, and what the program writes to it.
func terminal(t *testing.T, columns, rows uint16) (*os.File, *recorder) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
	seen, read := &recorder{}, make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(seen, screen) // EIO when the program has closed its side
	}()
	t.Cleanup(func() { program.Close(); <-read })
	return program, seen
}

// TestTop watches a slow download on a terminal, while the daemon is restarted, and ends with a signal. The terminal
// is as before then.
func TestTop(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 11, 9<<20)
	spoil, asked, open := stalled()
	s.Before(spoil)
	defer close(open)
	s.ok(t, "prefetch", "--detach", ref)
	<-asked
	program := func(args ...string) *exec.Cmd {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, append([]string{"--config", s.config, "--address", s.address}, args...)...)
		cmd.Env = append(os.Environ(), programVariable+"=1")
		return cmd
	}
	for _, end := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		tty, seen := terminal(t, 100, 20)
		cmd := program("top")
		cmd.Stdout, cmd.Stderr = tty, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		screen := func() string {
			all := strings.Split(seen.String(), "\x1b[H")
			return all[len(all)-1]
		}
		waitUntil(t, "the download on the screen", func() bool {
			return strings.Contains(screen(), ref) && strings.Contains(screen(), " network ") && strings.HasPrefix(screen(), "REGISTRY")
		})
		if end == syscall.SIGINT {
			s.stop()
			waitUntil(t, "the loss of the daemon on the screen", func() bool {
				return strings.HasPrefix(screen(), "trying again for ") && strings.Contains(screen(), ref)
			})
			hung, err := net.Listen("unix", s.address) // nobody accepts
			if err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "the silence of a daemon that hangs on the screen", func() bool {
				return strings.HasPrefix(screen(), "no answer from ballastd for ") && strings.Contains(screen(), ref)
			})
			hung.Close()
			s.start(t, 1)
			s.ok(t, "prefetch", "--detach", ref)
			waitUntil(t, "the new daemon on the screen", func() bool {
				return strings.HasPrefix(screen(), "REGISTRY") && strings.Contains(screen(), ref)
			})
		}
		if err := cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", end, err)
		}
		waitUntil(t, "the terminal as before", func() bool { return strings.HasSuffix(seen.String(), leaveScreen) })
		if got := seen.String(); !strings.HasPrefix(got, enterScreen+"\x1b[H") || strings.Count(got, enterScreen) != 1 || strings.Count(got, leaveScreen) != 1 {
			t.Errorf("%v: the screen is entered and left once, got %q", end, got)
		}
	}
	tty, seen := terminal(t, 100, 20)
	cmd := program("top", "-n", "1")
	cmd.Stdout = tty
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "one output", func() bool { return strings.Contains(seen.String(), ref) })
	if strings.Contains(seen.String(), "\x1b") {
		t.Errorf("top -n 1 controls the terminal: %q", seen)
	}
	if out := s.ok(t, "top", "-n", "2"); strings.Count(out, "REGISTRY") != 2 {
		t.Errorf("top -n 2:\n%s", out)
	}
	if st := parse[wire.Status](t, s.ok(t, "top", "-o", "json")); len(st.Jobs) == 0 || st.Jobs[0].Limit != "network" {
		t.Errorf("top -o json: %+v", st)
	}
}

// TestRegistryRows counts a download once, however many wait for it.
func TestRegistryRows(t *testing.T) {
	got := registryRows([]wire.Job{
		{Kind: wire.KindPrefetch, Ref: "a.b/c:1", Table: "sha256:1", Total: 100e6, Completed: 10e6, Rate: 5e6, Reads: 1},
		{Kind: wire.KindContainerd, Ref: "a.b/c:2", Table: "sha256:1", Total: 100e6, Completed: 10e6, Rate: 4e6, Reads: 1},
		{Kind: wire.KindBackground, Ref: "a.b/d:1", Table: "sha256:2", Total: 100e6, Completed: 20e6, Rate: 2e6, Reads: 2},
		{Kind: wire.KindAbandoned, Ref: "x.y/d:1", Table: "sha256:3", Total: 100e6},
		{Kind: wire.KindVerify, Ref: "v.w/d:1", Total: 100e6},
		{Kind: wire.KindRepair, Ref: "sha256:4", Table: "sha256:4", Total: 100e6},
	})
	want := [][]string{
		{"REGISTRY", "MODELS", "DONE", "RATE", "READS"}, {"a.b", "2", "30 MB of 200 MB", "7.0 MB/s", "3"}, {"x.y", "1", "0 B of 100 MB", "0 B/s", "0"},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
}

// TestMirrorRows says why a mirror was left.
func TestMirrorRows(t *testing.T) {
	at := time.Date(2026, 11, 28, 1, 2, 3, 0, time.Local)
	got := mirrorRows([]wire.Mirror{
		{Address: "http://a/v2", Bytes: 3e9, Wrong: 1, Left: map[string]int64{"slow": 2, "absent": 1, "failed": 0}, Last: &wire.Left{Reason: "slow", Error: "7 bytes in 5s", At: at}},
		{Address: "http://b/v2"},
	})
	want := [][]string{
		{"MIRROR", "RECEIVED", "LEFT", "WRONG", "LAST", "WHY"}, {"http://a/v2", "3.0 GB", "3", "1", "01:02:03", "slow: 7 bytes in 5s"}, {"http://b/v2", "0 B", "0", "0", "-", "-"},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
}

// TestScreenIsReplaced replaces each screen by the next one, cut to the size of the terminal.
func TestScreenIsReplaced(t *testing.T) {
	got := fitScreen("a line that is long\nb\nc\nd\ne\n", 10, 5)
	if want := "\x1b[Ha line th\x1b[K\nb\x1b[K\nc\x1b[K\n… and 2 m\x1b[K\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRepeat repeats until Ctrl-C, or an error of the first call. Without a terminal, a loss and its end have a line
// each.
func TestRepeat(t *testing.T) {
	var out, notes strings.Builder
	a := &app{stdout: &out, stderr: &notes}
	broken := errors.New("broken")
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	err := a.repeat(ctx, 0, func() error {
		switch n++; n {
		case 2, 3:
			fmt.Fprint(a.stdout, "half")
			return broken
		case 5:
			stop()
		}
		fmt.Fprintln(a.stdout, "x")
		return nil
	})
	want := "ballast: note: trying again: broken\nballast: note: ballastd answers again\n"
	if err != nil || out.String() != "x\nx\n" || notes.String() != want {
		t.Errorf("got %q, %q, %v", out.String(), notes.String(), err)
	}
	if err := a.repeat(t.Context(), 0, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
