package e2e

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestUntrusted pulls from a registry with an untrusted certificate: ctr reports that, and a prefetch
// does not suggest to try again.
func TestUntrusted(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes
	s.StartTLS()
	t.Cleanup(s.Close)
	address := strings.TrimPrefix(s.URL, "https://")
	n.Upstream(t, "untrusted.test", address)
	hosts := filepath.Join(n.Dir, "ballast.d", "untrusted.test", "hosts.toml")
	if err := os.WriteFile(hosts, fmt.Appendf(nil, "server = %q\n", s.URL), 0o644); err != nil {
		t.Fatal(err)
	}
	const ref = "untrusted.test/team/model:v1"
	const want = "certificate signed by unknown authority"
	if out := n.Pull("ballast", ref); out.Err == nil || !strings.Contains(out.Output(), want) || strings.Contains(out.Output(), "502") {
		t.Errorf("ctr images pull: %v, want %q and no 502:\n%s", out.Err, want, out.Output())
	}
	out := n.Ballast("prefetch", ref)
	if e, ok := errors.AsType[*exec.ExitError](out.Err); !ok || e.ExitCode() != 11 || strings.Count(out.Stderr, address+": ") != 1 || !strings.Contains(out.Stderr, "set ca in /") {
		t.Errorf("prefetch: %v, want exit code 1, the host once, and what to do:\n%s", out.Err, out.Stderr)
	}
}
