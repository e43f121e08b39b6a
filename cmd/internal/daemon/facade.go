package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/portowner"
	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
)

// portRetry is the pause between two attempts to listen: what keeps the port may end at any time.
const portRetry = time.Second

// facadeSocket is the name of the listening socket that the service manager holds: FileDescriptorName
// of contrib/systemd/ballastd.socket.
const facadeSocket = "facade"

// A facadePort serves the facade. What is wrong with its port or its keys costs the facade and
// nothing else: the snapshotter works on, and the port is tried again until it can be had.
//
//	trying ──listens──▶ serving
//	   ▲ ───refused──┐     │
//	   └─────────────┴─────┘ ended with an error
type facadePort struct {
	config  *config.Config
	handler http.Handler
	log     *slog.Logger
	passed  *os.File // listening socket of the service manager; nil: there is none that can be used

	up      prometheus.Gauge
	refused *prometheus.CounterVec

	mu   sync.Mutex      // guards passed and what follows
	keys *facadetls.Keys // nil: there are none (yet)
	err  error           // why nobody serves; nil: somebody does

	elsewhere string // where the socket of the service manager is, if not where the facade is to be
}

// open returns a listener, after the keys are there.
func (f *facadePort) open() (net.Listener, error) {
	if !f.config.Facade.InsecurePlainHTTP {
		if err := f.openKeys(); err != nil {
			return nil, err
		}
	}
	l, err := f.listen()
	if err != nil {
		return nil, fmt.Errorf("facade: %w", err)
	}
	return l, nil
}

// openKeys makes sure of the keys.
func (f *facadePort) openKeys() error {
	if f.openedKeys() != nil {
		return nil
	}
	keys, err := facadetls.Open(f.config.Root, facadetls.Options{Hosts: facadeHosts(f.config.Facade.Listen), Log: f.log})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = keys
	return nil
}

func (f *facadePort) openedKeys() *facadetls.Keys {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys
}

// listen returns the socket of the service manager if it is at the address of the configuration, and
// one of its own otherwise.
func (f *facadePort) listen() (net.Listener, error) {
	address := f.config.Facade.Listen
	f.mu.Lock()
	passed := f.passed
	f.mu.Unlock()
	if passed == nil {
		return net.Listen("tcp", address)
	}
	l, err := net.FileListener(passed)
	if err != nil {
		return nil, fmt.Errorf("socket %q of the service manager: %w", facadeSocket, err)
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

// run serves until ctx ends. first is a listener that open has returned already, or nil.
func (f *facadePort) run(ctx context.Context, first net.Listener) error {
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
		case <-time.After(portRetry):
		}
	}
}

// serve serves at l until ctx ends, which is no error.
func (f *facadePort) serve(ctx context.Context, l net.Listener) error {
	f.note(nil)
	refused := func(why string) { f.refused.WithLabelValues(why).Inc() }
	g := &guard{next: logged(f.log, "facade request", f.handler), hosts: facadeHosts(f.config.Facade.Listen), refused: refused}
	keys := f.openedKeys()
	if keys == nil {
		f.log.Warn("THE FACADE USES PLAIN HTTP (facade.insecure_plain_http): every user of this machine can use it, and a process that binds its port can replace images; for tests only",
			"address", l.Addr())
		return serveHTTP(ctx, f.log, g, l)
	}
	d := newDoor(l, keys.Config(), refused, f.log)
	g.known, g.crowded = keys.Verify, d.crowded
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer cancel()
	renewing.Go(func() { _ = keys.Run(ctx) })
	return serveHTTP(ctx, f.log, g, d)
}

// note takes down why nobody serves, and says it when it is news.
func (f *facadePort) note(err error) {
	f.mu.Lock()
	old := f.err
	f.err = err
	f.mu.Unlock()
	if err == nil {
		f.up.Set(1)
		if old != nil {
			f.log.Info("the facade answers again", "address", f.config.Facade.Listen)
		}
		return
	}
	f.up.Set(0)
	if old != nil && old.Error() == err.Error() {
		return
	}
	attrs := []any{"address", f.config.Facade.Listen, "err", err}
	if owner, err := f.owner(err); err == nil {
		attrs = append(attrs, "by", owner)
	}
	f.log.Error("the facade does not answer: no tags can be pulled through it; trying again", attrs...)
}

// owner returns who has the port if that is why it can not be had.
func (f *facadePort) owner(err error) (portowner.Owner, error) {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return portowner.Owner{}, errdefs.ErrNotFound
	}
	return portowner.Of(f.config.Facade.Listen)
}

// rotate makes a new CA.
func (f *facadePort) rotate(context.Context) error {
	keys := f.openedKeys()
	if keys == nil {
		return fmt.Errorf("there are no keys: the facade is disabled, uses plain HTTP or can not start: %w", errdefs.ErrFailedPrecondition)
	}
	return keys.Rotate()
}

// health returns facts about the facade.
func (f *facadePort) health() admin.FacadeHealth {
	h := admin.FacadeHealth{Plain: f.config.Facade.InsecurePlainHTTP, Manager: config.Manager().NotifySocket != ""}
	f.mu.Lock()
	keys, err := f.keys, f.err
	h.Held, h.HeldElsewhere = f.passed != nil, f.elsewhere
	f.mu.Unlock()
	if keys != nil {
		h.Keys = new(facadetls.Status)
		*h.Keys = keys.Status()
	}
	if err == nil {
		return h
	}
	h.Error = err.Error()
	if owner, err := f.owner(err); err == nil {
		h.Owner = &owner
	}
	return h
}
