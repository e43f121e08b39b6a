package doctor

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/remote"
)

// Reach asks registries with the client of a daemon.
func (a answers) Reach(ctx context.Context, registries []string) (all []wire.Reached) {
	for _, name := range registries {
		r := wire.Reached{Registry: name}
		if a.client != nil {
			if err := a.client.Reach(ctx, name); err != nil {
				r.Error = wire.Wrap(err)
			}
		}
		all = append(all, r)
	}
	return all
}

// TestClosedRegistriesAreAsked: a closed registry that answers is well, one whose CA nobody knows is a failure that names
// the file for it, and one that does not answer a warning.
func TestClosedRegistriesAreAsked(t *testing.T) {
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	untrusted.TLS = new(tls.Config)
	untrusted.StartTLS()
	defer untrusted.Close()
	well := httptest.NewServer(http.NotFoundHandler())
	defer well.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := l.Addr().String()
	l.Close()
	n := newNode(t)
	if n.client, err = remote.New(remote.Options{}); err != nil {
		t.Fatal(err)
	}
	defer n.client.Close()
	if err := os.RemoveAll(filepath.Join(n.dir, "certs.d")); err != nil {
		t.Fatal(err)
	}
	// Loopback addresses are trusted without a CA; this one is not known to be one.
	unknown := strings.Replace(untrusted.Listener.Addr().String(), "127.0.0.1", "0.0.0.0", 1)
	answering := well.Listener.Addr().String()
	for _, r := range []string{unknown, answering, silent} {
		n.hosts(t, snippet.Hosts{Registry: r})
	}
	want := map[string]node.Finding{
		"no pull from " + unknown + " can succeed": {Status: node.Fail, Fix: filepath.Join(n.dir, "certs.d", unknown, "ca.crt")},
		silent + " does not answer ballastd":       {Status: node.Warn, Fix: "upstream.offline"},
		"ballastd reaches " + answering:            {Status: node.OK},
	}
	for _, f := range n.run(t) {
		if f.Check != "registries" {
			continue
		}
		for says, w := range want {
			if strings.Contains(f.Message, says) && f.Status == w.Status && strings.Contains(f.Fix, w.Fix) {
				delete(want, says)
			}
		}
		t.Logf("%+v", f)
	}
	if len(want) > 0 {
		t.Errorf("missing: %+v", want)
	}
}
