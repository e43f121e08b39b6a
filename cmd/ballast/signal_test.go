package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registrytest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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

// TestHangup: the end of the terminal ends a conversion, which removes its files. After nohup it continues.
func TestHangup(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for signals, want := range map[string]int{"--default-signal=HUP": exitInterrupted, "--ignore-signal=HUP": 0} {
		r := registrytest.New(t)
		b := converttest.ModelPackTarGzip(converttest.Files([]byte("weights")))
		ref, layers := r.Add("m", "v1", b), parse[ocispec.Manifest](t, string(b.Manifest)).Layers
		asked, open := make(chan struct{}), make(chan struct{})
		ask := sync.OnceFunc(func() { close(asked) })
		r.Before(func(_ http.ResponseWriter, req *http.Request) bool {
			if slices.ContainsFunc(layers, func(l ocispec.Descriptor) bool { return strings.HasSuffix(req.URL.Path, "/blobs/"+l.Digest.String()) }) {
				ask()
				select {
				case <-open:
				case <-req.Context().Done():
				}
			}
			return false
		})
		temp := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "env", signals, self, "convert", ref, "oci:"+t.TempDir(), "--as", "modelpack", "--temp-dir", temp)
		cmd.Env = append(os.Environ(), programVariable+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-asked:
		case <-ended:
			t.Fatalf("it has ended: %s", out.String())
		}
		if left, err := os.ReadDir(temp); err != nil || len(left) == 0 {
			t.Fatalf("there are no temporary files: %v", err)
		}
		if err := cmd.Process.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if want == 0 {
			close(open)
		}
		<-ended
		left, err := os.ReadDir(temp)
		if code := cmd.ProcessState.ExitCode(); code != want || err != nil || len(left) > 0 {
			t.Errorf("%s: code %d, want %d, left %v, %v: %s", signals, code, want, left, err, out.String())
		}
	}
}
