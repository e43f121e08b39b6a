package facadetls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/durable"
)

// lookEvery is the interval between checks of the files.
const lookEvery = time.Minute

// Options are the settings of Open. The zero value works.
type Options struct {
	// Hosts are names and addresses of the facade besides those of the loopback interface.
	Hosts []string

	// Log receives what was created and why; nil discards.
	Log *slog.Logger

	// Now is the clock; nil means that of the machine.
	Now func() time.Time
}

// Keys are the certificates of a node. Create them with Open, and renew them with Run.
type Keys struct {
	root  string
	hosts []string
	log   *slog.Logger
	now   func() time.Time

	writing sync.Mutex            // serializes changes of the files and of current
	current atomic.Pointer[state] // never nil after Open
}

// state is what is currently valid.
type state struct {
	ca, client, server *pair
	config             *tls.Config
	status             Status
}

// Status describes what is currently valid.
type Status struct {
	// AuthorityEnds is when the certificate of the CA expires. It is renewed before.
	AuthorityEnds time.Time

	// Remade is when this daemon replaced a lost CA, and Why what was wrong with the old one. Zero
	// if it did not.
	Remade time.Time
	Why    string
}

// LoopbackHosts returns the names in every certificate of a facade.
func LoopbackHosts() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// Open reads the keys below the root of a daemon, and creates those that are missing, damaged or
// about to expire. The root must exist.
func Open(root string, o Options) (*Keys, error) {
	k := &Keys{root: root, hosts: append(LoopbackHosts(), o.Hosts...), log: o.Log, now: o.Now}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.now == nil {
		k.now = time.Now
	}
	return k, k.Renew()
}

// Status describes what is currently valid.
func (k *Keys) Status() Status { return k.current.Load().status }

// Config returns the TLS configuration of the facade: TLS 1.3, only for clients with the client
// key. Renewals take effect without a new Config.
func (k *Keys) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.current.Load().config, nil },
	}
}

// Verify reports whether a connection was authenticated with a certificate of the current CA. For
// nil it returns false.
func (k *Keys) Verify(c *tls.ConnectionState) bool {
	if c == nil || len(c.VerifiedChains) == 0 {
		return false
	}
	chain := c.VerifiedChains[0]
	return chain[len(chain)-1].Equal(k.current.Load().ca.cert)
}

// Run renews, at once and then every minute, until ctx ends.
func (k *Keys) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := k.Renew(); err != nil {
			k.log.Error("keys of the facade cannot be renewed; trying again", "wait", lookEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Renew creates what is missing, damaged or about to expire. After an error the previous
// certificates remain valid.
func (k *Keys) Renew() error { return k.renew(false) }

// Rotate creates a new CA, and all certificates signed by it.
func (k *Keys) Rotate() error { return k.renew(true) }

func (k *Keys) renew(rotate bool) (err error) {
	k.writing.Lock()
	defer k.writing.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("keys of the facade: %w", err)
		}
	}()
	if err := makeDir(Dir(k.root)); err != nil {
		return err
	}
	next := &state{}
	old := k.current.Load()
	if old != nil {
		next.status.Remade, next.status.Why, next.server = old.status.Remade, old.status.Why, old.server
	}
	if next.ca, err = k.authority(rotate, &next.status); err != nil {
		return err
	}
	if next.client, err = k.client(next.ca); err != nil {
		return err
	}
	now := k.now()
	if next.server == nil || checkLeaf(next.server, next.ca, x509.ExtKeyUsageServerAuth, now) != nil {
		if next.server, err = newServer(next.ca, now, k.hosts); err != nil {
			return err
		}
	}
	next.status.AuthorityEnds = next.ca.cert.NotAfter
	next.config = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{next.server.tls()},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: poolOf(next.ca), Time: k.now,
		// HTTP/1.1 only: containerd supports it, and blobs gain nothing from HTTP/2 frames.
		NextProtos: []string{"http/1.1"},
		// Responses are large; small initial records are for web pages.
		DynamicRecordSizingDisabled: true,
		// A resumed session could continue with a certificate of a CA that was replaced.
		SessionTicketsDisabled: true,
	}
	k.current.Store(next)
	return nil
}

// authority returns the CA from the files, or a new one if it is missing, damaged or exposed.
func (k *Keys) authority(rotate bool, s *Status) (*pair, error) {
	path := authorityFile(k.root)
	first := k.current.Load() == nil && !exists(path) && !exists(CAFile(k.root)) && !exists(ClientFile(k.root))
	ca, bad := readPair(path)
	if isUnreadable(bad) && !rotate && k.current.Load() != nil {
		return nil, bad
	}
	if bad == nil {
		bad = checkAuthority(ca, k.now())
	}
	if bad == nil { // the client key remains valid unless the CA changes
		if _, err := readPair(ClientFile(k.root)); errors.As(err, new(*exposedError)) {
			bad = err
		}
	}
	if bad == nil && !rotate {
		return ca, k.publish(ca)
	}
	now := k.now()
	ca, err := newAuthority(now)
	if err == nil {
		err = writePair(path, ca)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case rotate:
		k.log.Info("CA of the facade was replaced, as requested", "ends", ca.cert.NotAfter)
	case first:
		k.log.Info("CA of the facade was created", "path", path, "ends", ca.cert.NotAfter)
	default:
		s.Remade, s.Why = now, bad.Error()
		k.log.Warn("CA of the facade was lost and is created again; hosts.toml files stay as they are, running pulls fail once",
			"path", path, "ends", ca.cert.NotAfter, "err", bad)
	}
	return ca, k.publish(ca)
}

// publish writes the certificate of the CA to the file that containerd reads.
func (k *Keys) publish(ca *pair) error {
	path := CAFile(k.root)
	want := ca.certPEM()
	info, err := os.Lstat(path)
	if err == nil && info.Mode() == publicMode && owned(info) {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
			return nil
		}
	}
	return durable.WriteFile(path, want, publicMode)
}

// client returns the certificate of containerd, or a new one.
func (k *Keys) client(ca *pair) (*pair, error) {
	path := ClientFile(k.root)
	p, bad := readPair(path)
	if bad == nil {
		bad = checkLeaf(p, ca, x509.ExtKeyUsageClientAuth, k.now())
	}
	if bad == nil {
		return p, nil
	}
	p, err := newClient(ca, k.now())
	if err == nil {
		err = writePair(path, p)
	}
	if err != nil {
		return nil, err
	}
	if !errors.Is(bad, fs.ErrNotExist) {
		k.log.Info("certificate of containerd for the facade was renewed", "path", path, "ends", p.cert.NotAfter, "why", bad)
	}
	return p, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
