package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The log of a daemon that may open few files says so.
func TestFewDescriptors(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	set := func(n uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { set(before.Cur) })
	for n, want := range map[uint64]bool{fewDescriptors - 1: true, fewDescriptors: false} {
		set(n)
		var log bytes.Buffer
		warnOfDescriptors(slog.New(slog.NewTextHandler(&log, nil)))
		if got := strings.Contains(log.String(), "too many open files"); got != want {
			t.Errorf("%d open files: %q", n, log.String())
		}
	}
}
