package facadetls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// A node is a root with the keys of a daemon.
type node struct {
	*Keys
	root string
	now  time.Time
	log  bytes.Buffer
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{root: t.TempDir(), now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	n.open(t)
	return n
}

// open starts a daemon's keys.
func (n *node) open(t *testing.T) {
	t.Helper()
	var err error
	n.Keys, err = Open(n.root, n.options())
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) options() Options {
	return Options{Now: func() time.Time { return n.now }, Log: slog.New(slog.NewTextHandler(&n.log, nil))}
}

func (n *node) renew(t *testing.T) {
	t.Helper()
	if err := n.Renew(); err != nil {
		t.Fatal(err)
	}
}

// A client has what containerd reads for a pull.
type client struct{ config *tls.Config }

func (n *node) client(t *testing.T) *client {
	t.Helper()
	ca, err := os.ReadFile(CAFile(n.root))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("no certificate in %q", ca)
	}
	// One file for both, as for client = "path" of hosts.toml.
	p, err := os.ReadFile(ClientFile(n.root))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(p, p)
	if err != nil {
		t.Fatal(err)
	}
	return &client{&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, Time: func() time.Time { return n.now }}}
}

// ask makes one request to host and returns its error.
func (n *node) ask(t *testing.T, c *tls.Config, host string) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if !n.Verify(r.TLS) {
			t.Error("a request of another CA has come through")
		}
	})}
	done := make(chan error)
	go func() { done <- s.Serve(tls.NewListener(l, n.Config())) }()
	defer func() {
		s.Close()
		<-done
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	tr := &http.Transport{TLSClientConfig: c, DialContext: (&net.Dialer{}).DialContext}
	defer tr.CloseIdleConnections()
	if host == "::1" { // the test is about the name, and needs no IPv6
		tr.TLSClientConfig = c.Clone()
		tr.TLSClientConfig.ServerName, host = "::1", "127.0.0.1"
	}
	res, err := (&http.Client{Transport: tr}).Get("https://" + net.JoinHostPort(host, port) + "/v2/")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

func (n *node) read(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	es, err := os.ReadDir(Dir(n.root))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		p, err := os.ReadFile(filepath.Join(Dir(n.root), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(p)
	}
	return files
}

// The first start creates all files, with their modes whatever the umask is; a second start, or a
// check, changes nothing.
func TestFirstStart(t *testing.T) {
	for _, mask := range []int{0, 0o777} {
		old := syscall.Umask(mask)
		n := newNode(t)
		syscall.Umask(old)
		got := map[string]fs.FileMode{}
		for _, name := range []string{"", "authority.pem", "ca.pem", "client.pem"} {
			info, err := os.Stat(filepath.Join(Dir(n.root), name))
			if err != nil {
				t.Fatal(err)
			}
			got[name] = info.Mode().Perm()
		}
		want := map[string]fs.FileMode{"": 0o700, "authority.pem": 0o600, "ca.pem": 0o644, "client.pem": 0o600}
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("umask %o, modes (-got +want):\n%s", mask, d)
		}
		files := n.read(t)
		if strings.Contains(files["ca.pem"], "PRIVATE") {
			t.Error("ca.pem has a private key")
		}
		n.renew(t)
		n.open(t)
		if d := cmp.Diff(n.read(t), files); d != "" || len(files) != 3 {
			t.Errorf("files change, or are not three (-got +want):\n%s", d)
		}
		if s := n.Status(); !s.Remade.IsZero() || s.Why != "" {
			t.Errorf("the first start counts as a loss: %+v", s)
		}
		if got, want := n.Status().AuthorityEnds, n.now.Add(10*365*24*time.Hour); got.Before(want) {
			t.Errorf("the CA ends at %v, want %v or later", got, want)
		}
	}
}

// Only a client with a client certificate gets a response, and only from a server with a
// certificate of the facade.
func TestMutualAuthentication(t *testing.T) {
	n, other := newNode(t), newNode(t)
	good := n.client(t).config
	for _, host := range LoopbackHosts() {
		if err := n.ask(t, good, host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	facade := good.Clone()
	facade.Certificates = []tls.Certificate{n.current.Load().server.tls()}
	anonymous, foreign, old := good.Clone(), good.Clone(), good.Clone()
	anonymous.Certificates = nil
	foreign.Certificates = other.client(t).config.Certificates
	old.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]*tls.Config{"no certificate": anonymous, "certificate of another node": foreign, "certificate of the facade": facade, "TLS 1.2": old} {
		if err := n.ask(t, c, "127.0.0.1"); err == nil {
			t.Errorf("%s: there is an answer", name)
		}
	}
	if err := other.ask(t, good, "127.0.0.1"); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("another node answers: %v", err)
	}
	// containerd's certificate is not valid for a server.
	state := n.current.Load()
	if checkLeaf(state.client, state.ca, x509.ExtKeyUsageServerAuth, n.now) == nil {
		t.Error("who has the key of the client can be the facade")
	}
}

// The certificates are renewed before they expire, and clients that have read the old ones continue
// to work.
func TestRenewal(t *testing.T) {
	n := newNode(t)
	before, files := n.client(t), n.read(t)
	server := n.current.Load().server
	for n.now.Before(n.current.Load().client.cert.NotAfter.Add(-renewAhead)) {
		n.now = n.now.Add(24 * time.Hour)
	}
	n.now = n.now.Add(time.Second)
	n.renew(t)
	now := n.read(t)
	if now["authority.pem"] != files["authority.pem"] || now["ca.pem"] != files["ca.pem"] {
		t.Error("the CA has changed")
	}
	if now["client.pem"] == files["client.pem"] || n.current.Load().server == server {
		t.Error("the certificates are the old ones")
	}
	for name, c := range map[string]*client{"read before": before, "read after": n.client(t)} {
		if err := n.ask(t, c.config, "localhost"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A node that was off for a year, then one that was off until the CA expired.
	for _, off := range []time.Duration{365 * 24 * time.Hour, authorityLife} {
		n.now = n.now.Add(off)
		n.open(t)
		if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil {
			t.Errorf("after %v: %v", off, err)
		}
	}
	if n.Status().Remade.IsZero() {
		t.Error("nothing says that the CA had ended")
	}
}

// The clock of a machine starts in 1970, and is set later.
func TestClockStartsIn1970(t *testing.T) {
	n := newNode(t)
	today := n.now
	n.now = time.Unix(100, 0)
	n.open(t)
	if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil {
		t.Errorf("keys of today, in 1970: %v", err)
	}
	if err := os.RemoveAll(Dir(n.root)); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.now = today
	n.renew(t)
	if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil {
		t.Errorf("keys of 1970, today: %v", err)
	}
}

// Lost or damaged files are replaced by the next check, and work; the CA stays if possible.
func TestDamagedFilesAreReplaced(t *testing.T) {
	write := func(name, s string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			if err := os.WriteFile(filepath.Join(Dir(n.root), name), []byte(s), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(Dir(n.root), name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	mode := func(name string, mode fs.FileMode) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			if err := os.Chmod(filepath.Join(Dir(n.root), name), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	harmless := []string{"nothing", "public certificate can be written", "left by a crash", "directory can be read"}
	for _, tt := range []struct {
		name  string
		spoil func(*testing.T, *node)
		ca    bool // is replaced
	}{
		{"nothing", remove(), false},
		{"client lost", remove("client.pem"), false},
		{"client empty", write("client.pem", ""), false},
		{"client damaged", write("client.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), false},
		{"client of another CA", func(t *testing.T, n *node) { write("client.pem", newNode(t).read(t)["client.pem"])(t, n) }, false},
		{"facade's for the client", func(t *testing.T, n *node) {
			p, err := n.current.Load().server.pem()
			if err != nil {
				t.Fatal(err)
			}
			write("client.pem", string(p))(t, n)
		}, false},
		{"public certificate lost", remove("ca.pem"), false},
		{"public certificate of another CA", func(t *testing.T, n *node) { write("ca.pem", newNode(t).read(t)["ca.pem"])(t, n) }, false},
		{"public certificate can be written", mode("ca.pem", 0o666), false},
		{"left by a crash", write("client.pem.ballast-new", "half"), false},
		{"directory can be read", mode("", 0o755), false},
		{"CA lost", remove("authority.pem"), true},
		{"CA damaged", write("authority.pem", "\x00\x00"), true},
		{"CA of another node", func(t *testing.T, n *node) { write("authority.pem", newNode(t).read(t)["authority.pem"])(t, n) }, false},
		{"leaf for the CA", func(t *testing.T, n *node) { write("authority.pem", n.read(t)["client.pem"])(t, n) }, true},
		{"key of the CA can be read", mode("authority.pem", 0o644), true},
		{"key of the client can be read", mode("client.pem", 0o640), true},
		{"all of it", remove(""), true},
	} {
		for _, restart := range []bool{true, false} {
			name := tt.name + ", while the daemon runs"
			if restart {
				name = tt.name + ", while it does not"
			}
			t.Run(name, func(t *testing.T) {
				n := newNode(t)
				was := n.read(t)["authority.pem"]
				stale := n.client(t)
				tt.spoil(t, n)
				if err := check(n.root); (err == nil) != slices.Contains(harmless, tt.name) {
					t.Errorf("the check says: %v", err)
				}
				if restart {
					n.open(t)
				} else {
					n.renew(t)
				}
				if err := errors.Join(check(n.root), n.ask(t, n.client(t).config, "127.0.0.1")); err != nil {
					t.Error(err)
				}
				known := tt.ca && !(restart && tt.name == "all of it") // which is a first start
				if remade := !n.Status().Remade.IsZero(); remade != known || strings.Contains(n.log.String(), "was lost") != known {
					t.Errorf("reported as created again: %t, want %t; log:\n%s", remade, known, n.log.String())
				}
				if same := n.read(t)["authority.pem"] == was; same == (tt.ca || tt.name == "CA of another node") {
					t.Errorf("the CA is the same: %t", same)
				} else if !same && n.ask(t, stale.config, "127.0.0.1") == nil {
					t.Error("the old key still opens")
				}
				for name := range n.read(t) {
					if strings.HasSuffix(name, "-new") && tt.name != "left by a crash" {
						t.Errorf("%s is left", name)
					}
				}
			})
		}
	}
}

// A CA that was replaced on request is not lost, and nothing of the old one is valid any more.
func TestRotate(t *testing.T) {
	n := newNode(t)
	stale := n.client(t)
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{n.current.Load().client.cert, n.current.Load().ca.cert}}}
	if !n.Verify(&state) || n.Verify(nil) || n.Verify(&tls.ConnectionState{}) {
		t.Error("Verify is wrong about what is in force")
	}
	if err := n.Rotate(); err != nil {
		t.Fatal(err)
	}
	if n.Verify(&state) {
		t.Error("a connection of the old CA is served")
	}
	if err := n.ask(t, stale.config, "127.0.0.1"); err == nil {
		t.Error("the old key opens")
	}
	if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil {
		t.Error(err)
	}
	if !n.Status().Remade.IsZero() {
		t.Error("it counts as a loss")
	}
}

// If the files cannot be written, the current certificates stay valid, and Open returns the reason.
func TestUnwritableFiles(t *testing.T) {
	n := newNode(t)
	good := n.client(t)
	if err := os.RemoveAll(Dir(n.root)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Dir(n.root), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Renew(); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("got %v", err)
	}
	if err := n.ask(t, good.config, "127.0.0.1"); err != nil {
		t.Error(err)
	}
	if _, err := Open(n.root, Options{}); err == nil {
		t.Error("Open: no error")
	}
}

// A reader sees a matching pair each time while the keys are replaced.
func TestReadersSeePairs(t *testing.T) {
	n := newNode(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			p, err := os.ReadFile(ClientFile(n.root))
			if err == nil {
				_, err = tls.X509KeyPair(p, p)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 20 {
		if err := n.Rotate(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-done
}

// A running daemon replaces a lost file within a minute.
func TestRunReplacesLostFile(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k, err := Open(root, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		for range 2 {
			synctest.Wait()
			if err := os.Remove(ClientFile(root)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookEvery)
		}
		synctest.Wait()
		if !exists(ClientFile(root)) {
			t.Error("the certificate of containerd is not there again")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A crash during the replacement of the CA leaves some files old and some new. In every
// combination, the next start continues with the CA that is present, and the files that containerd
// reads then work.
func TestCrashWhileReplacing(t *testing.T) {
	n := newNode(t)
	old := n.read(t)
	if err := n.Rotate(); err != nil {
		t.Fatal(err)
	}
	fresh := n.read(t)
	names := []string{"authority.pem", "ca.pem", "client.pem"}
	for mask := range 1 << len(names) {
		for i, name := range names {
			from := old
			if mask&(1<<i) != 0 {
				from = fresh
			}
			path := filepath.Join(Dir(n.root), name)
			if err := os.WriteFile(path, []byte(from[name]), 0); err != nil {
				t.Fatal(err)
			}
		}
		want := n.read(t)["authority.pem"]
		n.open(t)
		if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil {
			t.Errorf("new files %03b: %v", mask, err)
		}
		if got := n.read(t); got["authority.pem"] != want || !n.Status().Remade.IsZero() {
			t.Errorf("new files %03b: the CA was created again", mask)
		}
	}
}

// check returns why pulls of containerd fail with the keys below the root of a daemon, or nil if they
// do not: files are missing or damaged, or do not belong together. A daemon replaces them within a
// minute, and at once when it is asked for its health. Only the owner of the files can check them.
func check(root string) error {
	ca, err := readPair(authorityFile(root))
	if err != nil {
		return err
	}
	public, err := os.ReadFile(CAFile(root))
	if err != nil {
		return err
	}
	if !bytes.Equal(public, ca.certPEM()) {
		return fmt.Errorf("%s is not the certificate in %s: %w", CAFile(root), authorityFile(root), errdefs.ErrDataLoss)
	}
	client, err := readPair(ClientFile(root))
	if err != nil {
		return err
	}
	if _, err := client.cert.Verify(x509.VerifyOptions{Roots: poolOf(ca), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("%s: %w", ClientFile(root), err)
	}
	return nil
}
