package fdstore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestListenFiles reads what a service manager says.
func TestListenFiles(t *testing.T) {
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
			files, err := ListenFiles(c.pid, c.fds, "a:b")
			if (err == nil) != c.ok || len(files) != 0 {
				t.Errorf("got %v, %v", files, err)
			}
		})
	}
}

// TestHolder asks a holder what it may be asked, and what not.
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
	go func() { ended <- runHolder(ctx, file, socket, slog.New(slog.DiscardHandler)) }()

	k := New(Options{Socket: socket}, "x-", slog.New(slog.DiscardHandler))
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
	if err := <-ended; err != nil { // it has nothing to keep
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is left: %v", err)
	}
}
