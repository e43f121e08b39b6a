package facadeport

import (
	"bufio"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/cmd/internal/door/serve"
)

// Limits of connections to the facade. Without limits, 8,000 idle connections of an unprivileged
// user cost 150 MiB.
const (
	// maxClients limits the connections of authenticated clients. A pull of containerd has a few, and
	// leaves them idle for half a minute after it. So above half of the limit, connections are
	// closed after their request, which leaves the other half to simultaneous pulls.
	maxClients = 512

	// maxPending limits the unauthenticated connections, each of which lasts at most
	// handshakeTimeout. When another one arrives, the oldest is closed: a client that opens many
	// cannot lock out containerd, whose handshake takes a millisecond. One costs up to 20 KiB.
	maxPending = 1024
)

// handshakeTimeout limits the time until a connection has shown a certificate.
const handshakeTimeout = 10 * time.Second

// tlsHandshake is the first byte of a TLS connection.
// https://www.rfc-editor.org/rfc/rfc8446#section-5.1
const tlsHandshake = 22

// A listener accepts clients with a certificate. Create it with newListener.
type listener struct {
	net.Listener // of the port
	config       *tls.Config
	refused      func(metrics.Refusal)
	log          *slog.Logger

	clients chan struct{} // has a value for each accepted connection
	ready   chan net.Conn
	failed  error         // error of Listener, set before closed is closed
	closed  chan struct{} // closed when no connection is accepted any more
	work    sync.WaitGroup
	plain   sync.Once // logs the first client that speaks plain HTTP

	mu      sync.Mutex // guards pending
	pending list.List  // unauthenticated connections, oldest first
}

// newListener starts to accept at l. The caller closes the listener.
func newListener(l net.Listener, config *tls.Config, refused func(metrics.Refusal), log *slog.Logger) *listener {
	d := &listener{
		Listener: l, config: config, refused: refused, log: log,
		clients: make(chan struct{}, maxClients), ready: make(chan net.Conn), closed: make(chan struct{}),
	}
	d.work.Go(d.accept)
	return d
}

// Accept returns the next accepted connection, a *tls.Conn after its handshake.
func (d *listener) Accept() (net.Conn, error) {
	select {
	case c := <-d.ready:
		return c, nil
	case <-d.closed:
		return nil, d.failed
	}
}

// busy reports whether connections should be closed after their request.
func (d *listener) busy() bool { return len(d.clients) > cap(d.clients)/2 }

// Close closes the listener and the connections that are not accepted yet.
func (d *listener) Close() error {
	err := d.Listener.Close()
	<-d.closed
	d.mu.Lock()
	for e := d.pending.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	d.mu.Unlock()
	d.work.Wait()
	return err
}

// accept handles connections until the listener is closed or fails.
func (d *listener) accept() {
	defer close(d.closed)
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		c, err := d.Listener.Accept()
		passes := func(e syscall.Errno) bool { return errors.Is(err, e) }
		switch {
		case err == nil:
			pause = firstPause
			e := d.enter(c)
			d.work.Go(func() { d.handle(c, e) })
		case slices.ContainsFunc(passing, passes):
			d.log.Warn("facade: a connection cannot be accepted; trying again", "wait", pause, "err", err)
			time.Sleep(pause)
			pause = min(2*pause, lastPause)
		default:
			d.failed = err
			return
		}
	}
}

// passing are the errors of accept(2) that are temporary.
// https://man7.org/linux/man-pages/man2/accept.2.html
var passing = []syscall.Errno{syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// enter adds an unauthenticated connection. If there are too many, it closes the oldest.
func (d *listener) enter(c net.Conn) *list.Element {
	d.mu.Lock()
	e := d.pending.PushBack(c)
	var out net.Conn
	if d.pending.Len() > maxPending {
		out = d.pending.Remove(d.pending.Front()).(net.Conn)
	}
	d.mu.Unlock()
	if out != nil {
		d.refused(metrics.TooMany)
		_ = out.Close()
	}
	return e
}

// handle performs the handshake and accepts or closes the connection.
func (d *listener) handle(c net.Conn, e *list.Element) {
	s := &countedConn{Conn: c, r: bufio.NewReaderSize(c, 16), leave: func() {}}
	t, err := d.handshake(s)
	if err != nil {
		d.log.Debug("facade: a connection is refused", "from", c.RemoteAddr(), "err", err)
		drain(c)
	}
	d.mu.Lock()
	d.pending.Remove(e) // no effect if it was removed
	d.mu.Unlock()
	if err != nil {
		_ = c.Close() // the handshake failed
		return
	}
	wait := time.NewTimer(handshakeTimeout)
	defer wait.Stop()
	select {
	case d.clients <- struct{}{}:
		s.leave = sync.OnceFunc(func() { <-d.clients })
	case <-wait.C:
		d.refused(metrics.TooMany)
		_ = t.Close()
		return
	case <-d.closed:
		_ = t.Close()
		return
	}
	select {
	case d.ready <- t:
	case <-d.closed:
		_ = t.Close()
	}
}

// handshake returns a connection whose client has shown its certificate.
func (d *listener) handshake(s *countedConn) (*tls.Conn, error) {
	if err := s.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	first, err := s.r.Peek(1)
	if err != nil {
		return nil, err
	}
	if first[0] != tlsHandshake {
		d.refused(metrics.PlainHTTP)
		d.plain.Do(func() { // once: any client can cause it
			d.log.Warn("a plain HTTP request to the facade was refused; if it came from containerd, run \"ballast doctor\"")
		})
		return nil, errors.Join(errors.New("it does not speak TLS"), answerPlain(s))
	}
	t := tls.Server(s, d.config)
	if err := t.HandshakeContext(context.Background()); err != nil { // the deadline ends it
		if !errors.Is(err, net.ErrClosed) { // which is already counted
			d.refused(metrics.Handshake)
		}
		return nil, err
	}
	return t, s.SetDeadline(time.Time{})
}

// answerPlain answers a client that speaks plain HTTP with advice. containerd shows only the text
// of a 403.
func answerPlain(s *countedConn) error {
	req, err := http.ReadRequest(bufio.NewReader(io.LimitReader(s, serve.MaxHeader)))
	if err != nil {
		return err
	}
	body := refusalBody("the facade of ballast speaks TLS, with keys for root only: run \"ballast doctor\", which names hosts.toml files that use plain HTTP")
	res := &http.Response{
		StatusCode: http.StatusForbidden, ProtoMajor: 1, ProtoMinor: 1, Request: req, Close: true,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
	return res.Write(s)
}

// drainTimeout limits the time that a refused client has to read the response.
const drainTimeout = time.Second

// drain lets the other side read the response: closing while there are unread bytes would make the
// kernel discard it.
func drain(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil && t.SetDeadline(time.Now().Add(drainTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, t, serve.MaxHeader) // ends with an error in any case
	}
}

// A countedConn is the connection below TLS. It is counted until it is closed.
type countedConn struct {
	net.Conn
	r     *bufio.Reader // has the byte that was read ahead
	leave func()        // may be called more than once
}

// Read implements net.Conn.
func (s *countedConn) Read(p []byte) (int, error) { return s.r.Read(p) }

// Close implements net.Conn.
func (s *countedConn) Close() error {
	s.leave()
	return s.Conn.Close()
}
