package daemon

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
)

// Limits of connections to the facade. Before there were any, 8,000 idle ones of a user without rights
// cost 150 MiB.
const (
	// maxKnown is how many connections of clients that have shown their certificate there are. A pull
	// of containerd has a few, and lets them be idle for half a minute after it; so from the half on
	// none stays open after its request, and the others are for pulls at the same time.
	maxKnown = 512

	// maxStrangers is how many others there are, for handshakeTimeout at the most. When one more comes,
	// the oldest is closed: who opens many can not keep containerd out, which needs a millisecond for
	// its handshake. One costs up to 20 KiB.
	maxStrangers = 1024

	// maxHeader is the largest header of a request, in bytes. Those of containerd have less than 1 KiB
	// and a pull secret; the tokens of cloud registries have up to 12 KiB.
	maxHeader = 64 << 10
)

// handshakeTimeout is how long a connection may take to show a certificate.
const handshakeTimeout = 10 * time.Second

// tlsHandshake is the first byte of a connection that speaks TLS.
// https://www.rfc-editor.org/rfc/rfc8446#section-5.1
const tlsHandshake = 22

// Why a connection or a request is refused: values of a label.
const (
	refusedPlain     = "plain_http"
	refusedHandshake = "handshake" // no certificate, or a wrong one
	refusedStale     = "stale_key" // of a CA that is not in force any more
	refusedCrowd     = "too_many"
	refusedHost      = "host"
	refusedBrowser   = "browser"
)

// A door is a listener that lets in who has shown a certificate. Make it with newDoor.
type door struct {
	net.Listener // of the port
	config       *tls.Config
	refused      func(why string)
	log          *slog.Logger

	known  chan struct{} // has a value for each connection that was let in
	ready  chan net.Conn
	failed error         // of Listener, once closed is closed
	closed chan struct{} // nobody is let in any more
	work   sync.WaitGroup
	plain  sync.Once // said that somebody speaks plain HTTP

	mu        sync.Mutex // guards strangers
	strangers list.List  // of net.Conn, the oldest first
}

// newDoor begins to accept at l. The door has to be closed.
func newDoor(l net.Listener, config *tls.Config, refused func(why string), log *slog.Logger) *door {
	d := &door{
		Listener: l, config: config, refused: refused, log: log,
		known: make(chan struct{}, maxKnown), ready: make(chan net.Conn), closed: make(chan struct{}),
	}
	d.work.Go(d.accept)
	return d
}

// Accept returns the next connection that was let in, a *tls.Conn after its handshake.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.ready:
		return c, nil
	case <-d.closed:
		return nil, d.failed
	}
}

// crowded reports whether connections should not be kept.
func (d *door) crowded() bool { return len(d.known) > cap(d.known)/2 }

// Close ends the listener and the connections that were not let in.
func (d *door) Close() error {
	err := d.Listener.Close()
	<-d.closed
	d.mu.Lock()
	for e := d.strangers.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	d.mu.Unlock()
	d.work.Wait()
	return err
}

// accept takes connections until the listener is closed or fails.
func (d *door) accept() {
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
			d.work.Go(func() { d.meet(c, e) })
		case slices.ContainsFunc(passing, passes):
			d.log.Warn("facade: a connection can not be accepted; trying again", "wait", pause, "err", err)
			time.Sleep(pause)
			pause = min(2*pause, lastPause)
		default:
			d.failed = err
			return
		}
	}
}

// passing are the errors of accept(2) after which it can be tried again.
// https://man7.org/linux/man-pages/man2/accept.2.html
var passing = []syscall.Errno{syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// enter takes note of a stranger. If there are too many, the oldest goes.
func (d *door) enter(c net.Conn) *list.Element {
	d.mu.Lock()
	e := d.strangers.PushBack(c)
	var out net.Conn
	if d.strangers.Len() > maxStrangers {
		out = d.strangers.Remove(d.strangers.Front()).(net.Conn)
	}
	d.mu.Unlock()
	if out != nil {
		d.refused(refusedCrowd)
		_ = out.Close()
	}
	return e
}

// meet finds out who a stranger is, and lets him in or closes.
func (d *door) meet(c net.Conn, e *list.Element) {
	s := &seat{Conn: c, r: bufio.NewReaderSize(c, 16), leave: func() {}}
	t, err := d.greet(s)
	if err != nil {
		d.log.Debug("facade: a connection is refused", "from", c.RemoteAddr(), "err", err)
		linger(c)
	}
	d.mu.Lock()
	d.strangers.Remove(e) // nothing if it is not there any more
	d.mu.Unlock()
	if err != nil {
		_ = c.Close() // is of no use to anybody
		return
	}
	wait := time.NewTimer(handshakeTimeout)
	defer wait.Stop()
	select {
	case d.known <- struct{}{}:
		s.leave = sync.OnceFunc(func() { <-d.known })
	case <-wait.C:
		d.refused(refusedCrowd)
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

// greet returns a connection whose client has shown its certificate.
func (d *door) greet(s *seat) (*tls.Conn, error) {
	if err := s.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	first, err := s.r.Peek(1)
	if err != nil {
		return nil, err
	}
	if first[0] != tlsHandshake {
		d.refused(refusedPlain)
		d.plain.Do(func() { // not each time: everybody can do it
			d.log.Warn("a plain HTTP request to the facade was refused; if it came from containerd, run \"ballast config hosts --upgrade\"")
		})
		return nil, errors.Join(errors.New("it does not speak TLS"), answerPlain(s))
	}
	t := tls.Server(s, d.config)
	if err := t.HandshakeContext(context.Background()); err != nil { // the deadline ends it
		if !errors.Is(err, net.ErrClosed) { // which is counted already
			d.refused(refusedHandshake)
		}
		return nil, err
	}
	return t, s.SetDeadline(time.Time{})
}

// answerPlain tells who speaks plain HTTP what to do. containerd shows the text of a 403 only.
func answerPlain(s *seat) error {
	req, err := http.ReadRequest(bufio.NewReader(io.LimitReader(s, maxHeader)))
	if err != nil {
		return err
	}
	body := refusalBody("the facade of ballast speaks TLS, with keys for root only: run \"ballast config hosts --upgrade\", which mends the hosts.toml files that ask by plain HTTP")
	res := &http.Response{
		StatusCode: http.StatusForbidden, ProtoMajor: 1, ProtoMinor: 1, Request: req, Close: true,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
	return res.Write(s)
}

// lingerTimeout is how long who is refused may take to read why.
const lingerTimeout = time.Second

// linger lets the other side read what it was answered: closing while there is something to be read
// would make the kernel forget the answer.
func linger(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil && t.SetDeadline(time.Now().Add(lingerTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, t, maxHeader) // ends with an error in any case
	}
}

// A seat is the connection below TLS. It counts until it is closed.
type seat struct {
	net.Conn
	r     *bufio.Reader // has the byte that was read ahead
	leave func()        // may be called more than once
}

// Read implements net.Conn.
func (s *seat) Read(p []byte) (int, error) { return s.r.Read(p) }

// Close implements net.Conn.
func (s *seat) Close() error {
	s.leave()
	return s.Conn.Close()
}
