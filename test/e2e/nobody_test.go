package e2e

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// nobodyArg makes the test program act as an unprivileged user.
const nobodyArg = "-as-nobody"

// nobodyCommand runs this program as nobody.
func nobodyCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{nobodyArg}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// asNobody runs "squat ADDRESS", "ask URL" or "read FILE...".
func asNobody(what string, args []string) error {
	switch what {
	case "squat":
		return squat(args[0])
	case "ask":
		return ask(args[0])
	case "read":
		for _, name := range args {
			p, err := os.ReadFile(name)
			fmt.Printf("%s: %d bytes, %v\n", name, len(p), err)
		}
		return nil
	}
	return fmt.Errorf("nobody does not know how to %q", what)
}

// selfSigned returns a certificate that anybody can make.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// ask tries all ways to get an answer from the facade without a key, and prints the results.
func ask(url string) error {
	own, err := selfSigned()
	if err != nil {
		return err
	}
	for name, c := range map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true}, "own certificate": {InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }},
		"TLS 1.2": {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
	} {
		tryGet(name, &http.Transport{TLSClientConfig: c}, url)
	}
	tryGet("plain HTTP", &http.Transport{}, strings.Replace(url, "https:", "http:", 1))
	return nil
}

func tryGet(name string, tr *http.Transport, url string) {
	res, err := (&http.Client{Transport: tr, Timeout: patience}).Get(url)
	if err != nil {
		fmt.Printf("%s: error %v\n", name, err)
		return
	}
	defer res.Body.Close()
	p, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	fmt.Printf("%s: status %d %s\n", name, res.StatusCode, p)
}

// A sighting is a connection or a request that a squatter received.
type sighting struct {
	TLS, Request, Authorization string
}

// squat serves at an address, with and without TLS: it requests credentials, and then has a manifest
// for every tag. It prints what it receives.
func squat(address string) error {
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	see := func(s sighting) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(s)
	}
	see(sighting{})
	config := &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		see(sighting{Request: r.Method + " " + r.URL.String(), Authorization: r.Header.Get("Authorization")})
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="facade"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(`{"schemaVersion":2}`))
	})}
	return s.Serve(&bothWays{l, config, see})
}

// bothWays is a listener whose connections use TLS if the client does.
type bothWays struct {
	net.Listener
	config *tls.Config
	see    func(sighting)
}

type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

func (b *bothWays) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := &peeked{c, bufio.NewReader(c)}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		first, err := p.r.Peek(1)
		if err != nil {
			c.Close()
			continue
		}
		_ = c.SetDeadline(time.Time{})
		if first[0] != 22 {
			return p, nil
		}
		t := tls.Server(p, b.config)
		if err := t.Handshake(); err != nil {
			b.see(sighting{TLS: err.Error()})
			t.Close()
			continue
		}
		b.see(sighting{TLS: "ok"})
		return t, nil
	}
}

// A squatter is a process of an unprivileged user that has bound the port of the facade.
type squatter struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex // guards seen
	seen []sighting
}

// startSquatter starts a squatter and waits until it listens.
func startSquatter(t *testing.T, address string) *squatter {
	t.Helper()
	s := &squatter{cmd: nobodyCommand("squat", address), done: make(chan struct{})}
	var stderr bytes.Buffer
	s.cmd.Stderr = &stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	ready := make(chan struct{})
	go func() {
		defer close(s.done)
		dec := json.NewDecoder(out)
		for first := true; ; first = false {
			var one sighting
			if dec.Decode(&one) != nil {
				return
			}
			if first {
				close(ready)
				continue
			}
			s.mu.Lock()
			s.seen = append(s.seen, one)
			s.mu.Unlock()
		}
	}()
	select {
	case <-ready:
	case <-s.done:
		t.Fatalf("the squatter has ended: %s", stderr.String())
	}
	return s
}

// stop kills it; later calls have no effect.
func (s *squatter) stop() {
	_ = s.cmd.Process.Kill()
	<-s.done
	_ = s.cmd.Wait()
}

func (s *squatter) sightings() []sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sighting(nil), s.seen...)
}

// runNobody runs a command of asNobody and returns its output.
func runNobody(t *testing.T, args ...string) string {
	t.Helper()
	out, err := nobodyCommand(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("as nobody, %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// letThrough lets all users reach the root of ballastd, as on a real node, where the directories above
// do not restrict access.
func letThrough(t *testing.T, n *node.Node) {
	t.Helper()
	for dir := filepath.Dir(n.Root()); dir != "/" && dir != "/tmp"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil && !errors.Is(err, os.ErrPermission) {
			t.Fatal(err)
		}
	}
}
