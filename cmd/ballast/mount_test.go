package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestLockedMountPoint has another process lock the directory of a mount, as every user who can open it can: the error
// names the directory, and Ctrl-C ends the wait.
func TestLockedMountPoint(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if _, err := lockDir(t.Context(), dir); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := lockDir(ctx, dir); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: got %v", err)
		}
	})
	other.Close()
	unlock, err := lockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
