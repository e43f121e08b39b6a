package facadeport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/door/portowner"
	"github.com/ballast-dev/ballast/cmd/internal/door/serve"
	"github.com/containerd/errdefs"
)

// SocketName is the name of the listening socket that the service manager holds: FileDescriptorName
// of contrib/systemd/ballastd.socket.
const SocketName = "facade"

// A Port serves the facade. If its port or its keys cannot be used, only the facade does not work:
// the snapshotter continues, and Port retries.
//
//	trying ──listens──▶ serving
//	   ▲ ───refused──┐     │
//	   └─────────────┴─────┘ ended with an error
type Port struct {
	config  *config.Config
	handler http.Handler
	metrics *metrics.Metrics
	log     *slog.Logger
	passed  *os.File // listening socket of the service manager; nil if there is none that is usable

	keys atomic.Pointer[facadetls.Keys] // nil if there are none (yet)

	mu  sync.Mutex // guards passed and the fields below
	err error      // why the facade is not served; nil if it is

	elsewhere string // address of the service manager's socket, if not that of the facade
}

// New returns the port of a facade; passed is the listening socket of the service manager, nil if
// there is none.
func New(c *config.Config, handler http.Handler, m *metrics.Metrics, log *slog.Logger, passed *os.File) *Port {
	return &Port{config: c, handler: handler, metrics: m, log: log, passed: passed}
}

// Open listens, and returns a function that serves until ctx ends. If Open cannot listen, that
// function retries.
func (f *Port) Open(ctx context.Context) (run func() error) {
	first, err := f.open()
	if err != nil {
		f.note(err)
	}
	return func() error { return f.run(ctx, first) }
}

// open ensures that there are keys and returns a listener.
func (f *Port) open() (net.Listener, error) {
	if !f.config.Facade.InsecurePlainHTTP && f.keys.Load() == nil {
		keys, err := facadetls.Open(f.config.Root, facadetls.Options{Hosts: facadeHosts(f.config.Facade.Listen), Log: f.log})
		if err != nil {
			return nil, err
		}
		f.keys.Store(keys)
	}
	l, err := f.listen()
	if err != nil {
		return nil, fmt.Errorf("facade: %w", err)
	}
	return l, nil
}

// listen returns the socket of the service manager if it is at the configured address, and a new
// one otherwise.
func (f *Port) listen() (net.Listener, error) {
	address := f.config.Facade.Listen
	f.mu.Lock()
	passed := f.passed
	f.mu.Unlock()
	if passed == nil {
		return net.Listen("tcp", address)
	}
	l, err := net.FileListener(passed)
	if err != nil {
		return nil, fmt.Errorf("socket %q of the service manager: %w", SocketName, err)
	}
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	have, ok := l.Addr().(*net.TCPAddr)
	if ok && have.Port == want.Port && (have.IP.Equal(want.IP) || have.IP.IsUnspecified() && (want.IP == nil || want.IP.IsUnspecified())) {
		return l, nil
	}
	f.log.Warn("ballastd.socket holds another port than facade.listen; change one of them",
		"held", l.Addr(), "facade", address)
	f.mu.Lock()
	f.passed, f.elsewhere = nil, l.Addr().String()
	f.mu.Unlock()
	if err := l.Close(); err != nil {
		return nil, err
	}
	return net.Listen("tcp", address)
}

// run serves until ctx ends. first is a listener that open returned, or nil.
func (f *Port) run(ctx context.Context, first net.Listener) error {
	for l := first; ; l = nil {
		var err error
		if l == nil {
			l, err = f.open()
		}
		if err == nil {
			err = f.serve(ctx, l)
		}
		if err == nil { // ctx has ended
			return nil
		}
		f.note(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(serve.PortRetry):
		}
	}
}

// serve serves at l until ctx ends, which is not an error.
func (f *Port) serve(ctx context.Context, l net.Listener) error {
	f.note(nil)
	g := &guard{next: serve.Logged(f.log, "facade request", f.handler), hosts: facadeHosts(f.config.Facade.Listen), refused: f.metrics.FacadeRefused}
	keys := f.keys.Load()
	if keys == nil {
		f.log.Warn("THE FACADE USES PLAIN HTTP (facade.insecure_plain_http): every user of this machine can use it, and a process that binds its port can replace images; for tests only",
			"address", l.Addr())
		return serve.HTTP(ctx, f.log, g, l)
	}
	d := newListener(l, keys.Config(), f.metrics.FacadeRefused, f.log)
	g.known, g.crowded = keys.Verify, d.busy
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer cancel()
	renewing.Go(func() { _ = keys.Run(ctx) })
	return serve.HTTP(ctx, f.log, g, d)
}

// note records why the facade does not answer, or nil if it does, and logs changes.
func (f *Port) note(err error) {
	f.mu.Lock()
	old := f.err
	f.err = err
	f.mu.Unlock()
	f.metrics.FacadeUp(err == nil)
	if err == nil {
		if old != nil {
			f.log.Info("the facade answers again", "address", f.config.Facade.Listen)
		}
		return
	}
	if old != nil && old.Error() == err.Error() {
		return
	}
	attrs := []any{"address", f.config.Facade.Listen, "err", err}
	if owner, err := f.owner(err); err == nil {
		attrs = append(attrs, "by", owner)
	}
	f.log.Error("the facade does not answer: no tags can be pulled through it; trying again", attrs...)
}

// owner returns the process that has the port, if that is the cause of err.
func (f *Port) owner(err error) (portowner.Owner, error) {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return portowner.Owner{}, errdefs.ErrNotFound
	}
	return portowner.Of(f.config.Facade.Listen)
}

// Rotate creates a new CA.
func (f *Port) Rotate(context.Context) error {
	keys := f.keys.Load()
	if keys == nil {
		return fmt.Errorf("there are no keys: the facade is disabled, uses plain HTTP or cannot start: %w", errdefs.ErrFailedPrecondition)
	}
	return keys.Rotate()
}

// Health returns facts about the facade. Keys that are missing or damaged are created again: whoever
// asks wants pulls to work.
func (f *Port) Health() wire.FacadeHealth {
	h := wire.FacadeHealth{Plain: f.config.Facade.InsecurePlainHTTP, Manager: config.Manager().NotifySocket != ""}
	f.mu.Lock()
	err := f.err
	h.Held, h.HeldElsewhere = f.passed != nil, f.elsewhere
	f.mu.Unlock()
	if keys := f.keys.Load(); keys != nil {
		err = cmp.Or(err, keys.Renew())
		h.Keys = new(wire.FacadeKeys(keys.Status()))
	}
	if err == nil {
		return h
	}
	h.Error = err.Error()
	if owner, err := f.owner(err); err == nil {
		h.Owner = new(wire.Owner(owner))
	}
	return h
}
