package facadeport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
)

// A testPort is a facade that answers "hello" at a port of its own.
type testPort struct {
	*Port
	stop func()

	hold    chan chan struct{} // receives when a request to /hold has arrived
	release chan struct{}      // ends one of them
}

func newTestPort(t *testing.T, listen string) *testPort {
	t.Helper()
	c := config.Default()
	c.Root, c.Facade.Listen = t.TempDir(), listen
	log := slog.New(slog.DiscardHandler)
	p := &testPort{Port: &Port{
		config: c, log: log, metrics: metrics.New(storetest.Open(t, c.Root, store.Options{}), wire.Version{}, log),
	}, hold: make(chan chan struct{}, 1), release: make(chan struct{})}
	p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			held := <-p.hold
			p.hold <- held
			held <- struct{}{}
			<-p.release
		}
		fmt.Fprint(w, "hello")
	})
	return p
}

// start serves at l, or tries to listen if that is nil, until the test ends.
func (p *testPort) start(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.run(ctx, l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
}

// serving returns a facade that answers, and its address.
func serving(t *testing.T) (*testPort, string) {
	t.Helper()
	p := newTestPort(t, "127.0.0.1:0")
	l, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	p.start(t, l)
	return p, l.Addr().String()
}

// tls returns the configuration of new connections. Each look at the keys makes a new one.
func (p *testPort) tls(t *testing.T) *tls.Config {
	t.Helper()
	c, err := p.keys.Load().Config().GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// client returns a client with the keys of containerd.
func (p *testPort) client(t *testing.T) (*http.Client, *tls.Config) {
	t.Helper()
	ca, err := os.ReadFile(facadetls.CAFile(p.config.Root))
	if err != nil {
		t.Fatal(err)
	}
	file := facadetls.ClientFile(p.config.Root)
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{cert}}
	c.RootCAs.AppendCertsFromPEM(ca)
	tr := &http.Transport{TLSClientConfig: c}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}, c
}

func get(c *http.Client, url string) (status int, body string, err error) {
	res, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	return res.StatusCode, string(p), err
}

// value returns the value of a series of the metrics.
func value(t *testing.T, m *metrics.Metrics, series string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if s, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no series %s in:\n%s", series, w.Body)
	return 0
}

// refused returns the number of refusals for the reason why.
func (p *testPort) refused(t *testing.T, why metrics.Refusal) float64 {
	t.Helper()
	return value(t, p.metrics, fmt.Sprintf("ballast_facade_refused_total{reason=%q}", why))
}

// wantRefused waits until the number of refusals is as given: the client can notice before it is
// counted.
func (p *testPort) wantRefused(t *testing.T, why metrics.Refusal, want float64) {
	t.Helper()
	waitFor(t, "refused because of "+string(why), func() bool { return p.refused(t, why) >= want })
	if got := p.refused(t, why); got != want {
		t.Errorf("refused because of %s: %v, want %v", why, got, want)
	}
}

// waitFor waits until fact returns true.
func waitFor(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// A client with the key gets a response; one without does not; one that speaks plain HTTP gets
// advice.
func TestFacadeAnswers(t *testing.T) {
	p, address := serving(t)
	good, keys := p.client(t)
	if status, body, err := get(good, "https://"+address+"/v2/"); err != nil || status != http.StatusOK || body != "hello" {
		t.Errorf("with the key: %d %q, %v", status, body, err)
	}
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: keys.RootCAs}}}
	if status, body, err := get(anonymous, "https://"+address+"/v2/"); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without: %d %q, %v", status, body, err)
	}
	p.wantRefused(t, metrics.Handshake, 1)
	for i, method := range []string{http.MethodGet, http.MethodHead} {
		req, err := http.NewRequest(method, "http://"+address+"/v2/a/manifests/1?ns=ghcr.io", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusForbidden || method == http.MethodGet && !strings.Contains(string(body), "ballast doctor") {
			t.Errorf("plain %s: %s %q, %v", method, res.Status, body, err)
		}
		p.wantRefused(t, metrics.PlainHTTP, float64(i+1))
	}
	// Replacing the CA also ends requests over open connections.
	if err := p.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _, err := get(good, "https://"+address+"/v2/"); err != nil || status != http.StatusForbidden {
		t.Errorf("with a connection of the old key: %d, %v", status, err)
	}
	p.wantRefused(t, metrics.StaleKey, 1)
	fresh, _ := p.client(t)
	if status, _, err := get(fresh, "https://"+address+"/v2/"); err != nil || status != http.StatusOK {
		t.Errorf("with the new key: %d, %v", status, err)
	}
}

// A user who opens any number of connections, without sending anything, locks out no other client.
func TestStrangersLockOutNoClient(t *testing.T) {
	p, address := serving(t)
	good, _ := p.client(t)
	const more = 50
	for i := range maxPending + more {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%100 != 0 && i != maxPending+more-1 {
			continue
		}
		if status, _, err := get(good, "https://"+address+"/v2/"); err != nil || status != http.StatusOK {
			t.Fatalf("after %d connections without a key: %d, %v", i, status, err)
		}
		good.CloseIdleConnections()
	}
	waitFor(t, "the oldest unauthenticated connections to be closed", func() bool {
		return p.refused(t, metrics.TooMany) == more+1 // the last client took the place of one
	})
}

// Authenticated connections are also limited. Idle ones do not use up the limit, and a request
// above it waits until another one ends.
func TestAuthenticatedConnectionsAreLimited(t *testing.T) {
	p, address := serving(t)
	_, keys := p.client(t)
	transport := func() *http.Client {
		tr := &http.Transport{TLSClientConfig: keys} // one per pull
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	for i := range maxClients + 10 {
		if status, _, err := get(transport(), "https://"+address+"/v2/"); err != nil || status != http.StatusOK {
			t.Fatalf("pull %d: %d, %v", i, status, err)
		}
	}
	held, done := make(chan struct{}, maxClients), make(chan error, maxClients)
	const idle = maxClients / 2
	p.hold <- held
	for range maxClients - idle {
		go func() {
			_, _, err := get(transport(), "https://"+address+"/hold")
			done <- err
		}()
	}
	for range maxClients - idle {
		<-held
	}
	answered := make(chan error, 1)
	go func() {
		_, _, err := get(transport(), "https://"+address+"/v2/")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("one more than the limit is served: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.release <- struct{}{}
	if err := <-answered; err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	close(p.release)
	for range maxClients - idle {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Requests of browsers are refused, as are requests for another host.
func TestGuard(t *testing.T) {
	refused := map[metrics.Refusal]int{}
	g := &guard{
		next:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		hosts: facadeHosts("models.example:5757"), refused: func(why metrics.Refusal) { refused[why]++ },
	}
	for _, tt := range []struct {
		host, header string
		want         int
	}{
		{"127.0.0.1:5757", "", 200}, {"localhost:5757", "", 200}, {"[::1]:5757", "", 200}, {"LOCALHOST", "", 200},
		{"Models.example:5757", "", 200}, {"127.0.0.1", "", 200}, {"[::1]", "", 200},
		{"rebind.attacker.example", "", 421}, {"rebind.attacker.example:5757", "", 421}, {"", "", 421}, {"127.0.0.1.attacker.example", "", 421},
		{"127.0.0.1:5757", "Origin", 403}, {"127.0.0.1:5757", "Sec-Fetch-Mode", 403}, {"127.0.0.1:5757", "Sec-Fetch-Anything", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/v2/", nil)
		r.Host = tt.host
		if tt.header != "" {
			r.Header.Set(tt.header, "x")
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("host %q, header %q: %d, want %d", tt.host, tt.header, w.Code, tt.want)
		}
	}
	if refused[metrics.Host] != 4 || refused[metrics.Browser] != 3 {
		t.Errorf("counted: %v", refused)
	}
}

// A taken port is retried until it is free; meanwhile its owner is reported.
func TestFacadePortTaken(t *testing.T) {
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newTestPort(t, squatter.Addr().String())
	p.start(t, nil)
	waitFor(t, "the fault to be known", func() bool { return p.Health().Error != "" })
	h := p.Health()
	if h.Owner == nil || h.Owner.PID != os.Getpid() || h.Owner.UID != os.Getuid() || !strings.Contains(h.Error, "address already in use") {
		t.Errorf("got %+v, owner %v", h, h.Owner)
	}
	if value(t, p.metrics, "ballast_facade_up") != 0 {
		t.Error("the metric says that it answers")
	}
	squatter.Close()
	waitFor(t, "the facade to answer", func() bool { return p.Health().Error == "" })
	good, _ := p.client(t)
	if status, _, err := get(good, "https://"+squatter.Addr().String()+"/v2/"); err != nil || status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
	if value(t, p.metrics, "ballast_facade_up") != 1 {
		t.Error("the metric says that it does not answer")
	}
}

// If the keys cannot be written, only the facade fails.
func TestFacadeWithoutKeys(t *testing.T) {
	p := newTestPort(t, "127.0.0.1:0")
	if err := os.WriteFile(facadetls.Dir(p.config.Root), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t, nil)
	waitFor(t, "the fault to be known", func() bool { return strings.Contains(p.Health().Error, "is not a directory") })
	if err := p.Rotate(t.Context()); err == nil {
		t.Error("rotate: no error")
	}
	if err := os.Remove(facadetls.Dir(p.config.Root)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the facade to answer", func() bool { return p.Health().Error == "" && p.Health().Keys != nil })
}

// Keys that are lost while the facade answers are there again when it is asked for its health.
func TestFacadeKeysLost(t *testing.T) {
	p := newTestPort(t, "127.0.0.1:0")
	l, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	opened := p.tls(t)
	p.start(t, l)
	// It looks at its keys at once, and then not for a minute.
	waitFor(t, "the facade to look at its keys", func() bool { return p.tls(t) != opened })
	if err := os.RemoveAll(facadetls.Dir(p.config.Root)); err != nil {
		t.Fatal(err)
	}
	if h := p.Health(); h.Error != "" || h.Keys.Why == "" {
		t.Errorf("%+v", h)
	}
	fresh, _ := p.client(t)
	if status, _, err := get(fresh, "https://"+l.Addr().String()+"/v2/"); err != nil || status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
	if err := errors.Join(os.RemoveAll(facadetls.Dir(p.config.Root)), os.WriteFile(facadetls.Dir(p.config.Root), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if h := p.Health(); !strings.Contains(h.Error, "is not a directory") {
		t.Errorf("keys that cannot be written: %+v", h)
	}
}

// Tests use the facade without keys; it still blocks browsers, and logs that it has no keys.
func TestFacadePlain(t *testing.T) {
	p := newTestPort(t, "127.0.0.1:0")
	p.config.Facade.InsecurePlainHTTP = true
	said := make(signal, 1)
	p.log = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	p.start(t, l)
	<-said
	for header, want := range map[string]int{"Accept": http.StatusOK, "Origin": http.StatusForbidden} {
		req, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, "x")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", header, res.Status, want)
		}
	}
	if h := p.Health(); !h.Plain || h.Keys != nil {
		t.Errorf("health: %+v", h)
	}
	if _, err := os.Stat(facadetls.Dir(p.config.Root)); err == nil {
		t.Error("there are keys")
	}
	if p.Rotate(t.Context()) == nil {
		t.Error("rotate: no error")
	}
}

// The socket of the service manager is used if it is at the address of the facade.
func TestPassedSocketIsUsed(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	file, err := held.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	address := held.Addr().String()
	for range 2 { // the port is held from one daemon to the next
		p := newTestPort(t, address)
		p.passed = file
		l, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		p.start(t, l)
		good, _ := p.client(t)
		if status, _, err := get(good, "https://"+address+"/v2/"); err != nil || status != http.StatusOK {
			t.Errorf("%d, %v", status, err)
		}
		if !p.Health().Held {
			t.Error("health does not say that the port is held")
		}
		good.CloseIdleConnections()
		p.stop()
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			t.Error("another process can bind the port between two daemons")
		}
	}
	// At another address it is not used, and this is reported.
	p := newTestPort(t, "127.0.0.1:0")
	p.passed = file
	l, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if h := p.Health(); l.Addr().String() == address || h.Held || h.HeldElsewhere != address {
		t.Errorf("listens at %v; %+v", l.Addr(), h)
	}
}

// The socket unit has the address of the default configuration and the expected name.
func TestSocketUnit(t *testing.T) {
	p, err := os.ReadFile("../../../../contrib/systemd/ballastd.socket")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nListenStream=" + config.Default().Facade.Listen + "\n", "\nFileDescriptorName=" + SocketName + "\n", "\nTriggerLimitIntervalSec=0\n"} {
		if !strings.Contains(string(p), want) {
			t.Errorf("no %q in:\n%s", want, p)
		}
	}
}

// A signal reports that something was written.
type signal chan struct{}

func (s signal) Write(p []byte) (int, error) {
	select {
	case s <- struct{}{}:
	default:
	}
	return len(p), nil
}
