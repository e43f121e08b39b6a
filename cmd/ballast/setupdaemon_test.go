package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/daemon"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
)

// TestDaemonProcess is the process of a daemon for other tests: that of the configuration in DAEMON.
func TestDaemonProcess(t *testing.T) {
	file := os.Getenv("DAEMON")
	if file == "" {
		t.Skip("it is run by other tests")
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := errors.Join(d.Run(ctx), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// stoppedDaemon returns a program that runs the daemon of a site, and the file that lists its calls; it fails for those
// that match a pattern of the shell: its number and its arguments.
func stoppedDaemon(t *testing.T, fails string) (a *app, program, calls string) {
	t.Helper()
	s := newSite(t)
	s.stop()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, calls = filepath.Join(dir, "ballastd"), filepath.Join(dir, "calls")
	script := fmt.Sprintf(`#!/bin/sh
echo "run $*" >> %[1]q
case "$(wc -l < %[1]q) $1" in
%[4]s) exit 1;;
*unmount) exit 0;;
esac
DAEMON=%[2]q exec %[3]q -test.run='^TestDaemonProcess$'
`, calls, s.config, self, fails)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &app{stdout: new(bytes.Buffer), stderr: new(bytes.Buffer), address: s.address}, program, calls
}

// TestDaemonForRemoval starts a daemon again that exits at first, as beside one that is just ending,
// calls the function while it answers, and stops it and removes its mount.
func TestDaemonForRemoval(t *testing.T) {
	a, program, calls := stoppedDaemon(t, "1*|*unmount")
	called := errors.New("called")
	err := a.withDaemon(t.Context(), program, func() error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Version(t.Context()); err != nil {
			return err
		}
		return called
	})
	if !errors.Is(err, called) || !strings.Contains(err.Error(), "unmount: exit status 1") {
		t.Errorf("got %v, want the errors of the function and of the unmount", err)
	}
	if p, err := os.ReadFile(calls); err != nil || string(p) != "run \nrun \nrun unmount\n" {
		t.Errorf("calls of the program: %q, %v", p, err)
	}
	if c, err := a.client(); err == nil {
		if _, err := c.Version(t.Context()); err == nil {
			t.Error("the daemon still answers")
		}
		c.Close()
	}
}

// TestRemovalIsOnePlan prints the removals while the daemon runs and after it as one.
func TestRemovalIsOnePlan(t *testing.T) {
	a, program, _ := stoppedDaemon(t, "none")
	if err := a.removeWithDaemon(t.Context(), setup.Options{Host: t.TempDir()}, program, outJSON); err != nil {
		t.Fatal(err)
	}
	plan := parse[setup.Plan](t, a.stdout.(*bytes.Buffer).String())
	if len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0], "ballast is not set up on this node") {
		t.Errorf("got %+v", plan)
	}
}

// TestDaemonForRemovalIsMissing returns the reason at once.
func TestDaemonForRemovalIsMissing(t *testing.T) {
	a := &app{stderr: new(bytes.Buffer), address: filepath.Join(t.TempDir(), "s")}
	err := a.withDaemon(context.Background(), "/nowhere/ballastd", func() error { t.Error("it is called"); return nil })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
