package fdstore

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain is also the holder that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "holder" {
		set := flag.NewFlagSet("holder", flag.ExitOnError)
		fd, socket := set.Int("fd", 0, ""), set.String("socket", "", "")
		_ = set.Parse(os.Args[2:]) // or exits
		if err := RunHolder(context.Background(), os.NewFile(uintptr(*fd), "listener"), *socket, slog.New(slog.DiscardHandler)); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestPassed parses the variables of a service manager.
func TestPassed(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, c := range map[string]struct {
		pid, fds string
		ok       bool
	}{
		"nothing":   {"", "", true},
		"for other": {"1", "2", true},
		"none":      {self, "0", true},
		"negative":  {self, "-1", false},
		"huge":      {self, "99999999", false},
		"text":      {self, "x", false},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Passed(c.pid, c.fds, "a:b")
			if (err == nil) != c.ok || len(files) != 0 {
				t.Errorf("got %v, %v", files, err)
			}
		})
	}
}

// TestHolder sends a holder valid and invalid requests.
func TestHolder(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "holder.sock")
	l, err := listenPacket(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	file, err := l.File()
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- runHolder(ctx, file, socket, &holder{log: slog.New(slog.DiscardHandler), held: map[string]int{}})
	}()

	k := New(Options{Socket: socket}, slog.New(slog.DiscardHandler))
	dev, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.dial()
	if err != nil {
		t.Fatal(err)
	}
	fd := func(f *os.File) int { return int(f.Fd()) }
	for name, r := range map[string]struct {
		message string
		fds     []int
	}{
		"no file":    {"keep x-x", nil},
		"two files":  {"keep x-x", []int{fd(dev), fd(dev)}},
		"no name":    {"keep ", []int{fd(dev)}},
		"other word": {"give", nil},
		"too long":   {"keep x-" + strings.Repeat("x", maxPacket), []int{fd(dev)}},
	} {
		one, err := k.dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := exchange(one, r.message, r.fds); err == nil {
			t.Errorf("%s: no error", name)
		}
		one.Close()
	}
	if _, err := exchange(c, "drop x-unknown", nil); err != nil {
		t.Error(err)
	}
	c.Close()
	dev.Close()
	if err := <-ended; err != nil { // it keeps no descriptor
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is left: %v", err)
	}
}

// A holder that got no processor time finds a daemon that waits to be accepted: it must not end.
func TestHolderStaysForWaitingClient(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "holder.sock")
	l, err := listenPacket(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := &holder{log: slog.New(slog.DiscardHandler), held: map[string]int{}}
	if !h.idle(l) {
		t.Error("not idle without clients")
	}
	c, err := New(Options{Socket: socket}, h.log).dial()
	if err != nil {
		t.Fatal(err)
	}
	if h.idle(l) {
		t.Error("idle although a daemon waits to be accepted")
	}
	accepted, err := l.Accept()
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	accepted.Close()
	if !h.idle(l) {
		t.Error("not idle although all are gone")
	}
}

// fragile returns a command that is a holder only after the file exists.
func fragile(t *testing.T, file string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/bin/sh", "-c", `[ -e "$0" ] || exit 1; exec "$@"`, file, self, "holder"}
}

// A descriptor that could not be handed over is handed over later, by the Keeper or by KeepNow.
func TestKeepIsRetried(t *testing.T) {
	for _, now := range []bool{false, true} {
		dir := t.TempDir()
		o := Options{Socket: filepath.Join(dir, "holder.sock"), Command: fragile(t, filepath.Join(dir, "ok"))}
		log := slog.New(slog.DiscardHandler)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := w.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		k := New(o, log)
		if err := k.Keep("x-pipe", raw); err == nil {
			t.Fatal("kept without a holder")
		}
		if by, kept := k.Status(); by != ByProcess || kept {
			t.Errorf("status: got %s, %t", by, kept)
		}
		if now {
			k.Unwatch()
		}
		if now && k.KeepNow("x-pipe", raw) {
			t.Error("kept without a holder, the second time")
		}
		if err := os.WriteFile(filepath.Join(dir, "ok"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if now && !k.KeepNow("x-pipe", raw) {
			t.Error("not kept although there is a holder")
		}
		for end := time.Now().Add(3 * lastRetry); ; time.Sleep(5 * time.Millisecond) {
			if _, kept := k.Status(); kept {
				break
			}
			if time.Now().After(end) {
				t.Fatal("it is not kept")
			}
		}
		k.Unwatch()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		next := New(o, log)
		kept := next.Take(false)["x-pipe"]
		if kept == nil {
			t.Fatal("it is not there any more")
		}
		if _, err := kept.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		next.Drop("x-pipe")
		kept.Close()
		if p, err := io.ReadAll(r); err != nil || string(p) != "x" { // ends when the holder has closed its copy
			t.Errorf("got %q, %v", p, err)
		}
		r.Close()
	}
}

// TestFirstStart checks that nothing is logged if no holder ran before.
func TestFirstStart(t *testing.T) {
	var logged strings.Builder
	log := slog.New(slog.NewTextHandler(&logged, nil)) // level info and above
	dir := t.TempDir()
	New(Options{Socket: filepath.Join(dir, "none.sock")}, log).Take(false)
	if logged.Len() > 0 {
		t.Errorf("logged at the first start: %s", &logged)
	}
	dead := filepath.Join(dir, "dead.sock")
	l, err := listenPacket(dead)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if New(Options{Socket: dead}, log).Take(false); !strings.Contains(logged.String(), "holder does not answer") {
		t.Errorf("logged about a holder that has ended: %q", &logged)
	}
}
