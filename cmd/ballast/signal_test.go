package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInterruptEnds interrupts commands that wait where a context does not end them: for the writer of
// a FIFO, and for the reader of their output.
func TestInterruptEnds(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	unread, stdout := io.Pipe()
	defer unread.Close()
	for name, tt := range map[string]struct {
		args   []string
		stdout io.Writer
	}{
		"list":   {[]string{"prefetch", "--file", fifo}, io.Discard},
		"output": {[]string{"version"}, stdout},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		var stderr strings.Builder
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, append([]string{"--address", fifo + ".sock"}, tt.args...), tt.stdout, &stderr)
		}()
		select {
		case c := <-code:
			t.Fatalf("%s: does not wait: code %d, %q", name, c, stderr.String())
		case <-time.After(100 * time.Millisecond): // it waits, or is about to
		}
		interrupt()
		select {
		case c := <-code:
			if c != exitInterrupted || stderr.String() != "" {
				t.Errorf("%s: code %d, %q", name, c, stderr.String())
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: does not end", name)
		}
	}
	if w, err := os.OpenFile(fifo, os.O_RDWR, 0); err != nil { // ends the open of the first
		t.Error(err)
	} else if err := w.Close(); err != nil {
		t.Error(err)
	}
}
