package remote_test

import (
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
)

// How many frames of functions of ballast lead to the request for a chunk: in the goroutine that has the buffer for
// it, and in all goroutines from store.Store.Hydrate on. Six more lead there from diff.Applier.Apply: Apply of
// package jobs and of package differ, applyTable, show, its argument, ensure. A compiler may inline some of those of
// earlier goroutines.
const (
	maxFrames    = 10
	maxAllFrames = 27
)

// TestFrames checks how many functions pass a chunk on before a registry is asked for it.
func TestFrames(t *testing.T) {
	const setting = "tracebackancestors"
	if !strings.Contains(os.Getenv("GODEBUG"), setting) { // which the runtime reads at its start
		cmd := exec.Command(os.Args[0], "-test.run=^TestFrames$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG="+setting+"=10")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestFrames") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	server := newUpstream(t)
	content := storetest.Random(1, 9<<20)
	server.putBlob(content)
	c := newClient(t, remote.Options{HostsDir: hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n")})
	w := &witness{}
	if err := remote.Wrap(c, "registry.example", w.watch); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	from := []transfer.Source{{Name: "registry.example/org/model", Fetcher: repositoryOf(t, c, exampleRef(t, "x"), nil)}}
	table := storetest.NewBuilder("m").RawChunks("model", content, 0o644, 1<<20).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(w.last, "\n"); n == 0 || n > maxFrames {
		t.Errorf("%d frames, want at most %d:\n%s", n, maxFrames, w.last)
	}
	if n := strings.Count(w.all, "\n"); n <= maxFrames || n > maxAllFrames {
		t.Errorf("%d frames with those of the goroutines before, want at most %d:\n%s", n, maxAllFrames, w.all)
	}
	t.Logf("of the goroutine:\n%s\nwith those before:\n%s", w.last, w.all)
}

// A witness records the functions of ballast that lead to a request, one in a line, for those with most of them.
type witness struct {
	next http.RoundTripper

	mu        sync.Mutex // guards the following
	last, all string     // of the goroutine, and of those before it too
}

func (w *witness) watch(next http.RoundTripper) http.RoundTripper {
	w.next = next
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *witness) RoundTrip(req *http.Request) (*http.Response, error) {
	var last, all strings.Builder
	pcs := make([]uintptr, 200)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if ours(f.Function) {
			last.WriteString(f.Function + "\n")
		}
	}
	buf := make([]byte, 1<<20)
	for line := range strings.Lines(string(buf[:runtime.Stack(buf, false)])) {
		if ours(line) {
			all.WriteString(line)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(last.String()) > len(w.last) {
		w.last, w.all = last.String(), all.String()
	}
	return w.next.RoundTrip(req)
}

// ours reports whether a function is of ballast and of no test.
func ours(function string) bool {
	name, ok := strings.CutPrefix(function, "github.com/ballast-dev/ballast/")
	return ok && !strings.HasPrefix(name, "convert/remote_test")
}
