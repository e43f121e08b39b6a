package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/diffservice"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// maxMessage is the largest gRPC message, in bytes, as containerd has it.
// https://github.com/containerd/containerd/blob/v2.4.2/defaults/defaults.go
const maxMessage = 16 << 20 // 16 MiB

// headerTimeout is how long a client may take to send the headers of a request.
const headerTimeout = 10 * time.Second

// idleTimeout is how long a connection without a request stays.
const idleTimeout = 2 * time.Minute

// listeners are where the daemon is reached, but for ports, which others can have.
type listeners struct {
	grpc, admin net.Listener
}

// listen opens all listeners or none.
func (d *Daemon) listen() (l listeners, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, c := range []net.Listener{l.grpc, l.admin} {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	if l.grpc, err = listenUnix(d.config.Address); err != nil {
		return l, err
	}
	if l.admin, err = listenUnix(d.config.AdminAddress); err != nil {
		return l, err
	}
	return l, nil
}

// listenUnix listens at path, which only root can open. A socket that nobody answers at is
// replaced; if somebody does, it returns errdefs.ErrAlreadyExists.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("socket %s: somebody answers there: %w", path, errdefs.ErrAlreadyExists), c.Close())
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would unlink the name it was made under
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return &unixListener{Listener: l, path: path}, nil
}

// A unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	path string
}

func (l *unixListener) Close() error {
	err := l.Listener.Close()
	if err == nil {
		_ = os.Remove(l.path) // a stale socket is replaced at the next start
	}
	return err
}

// grpcServer returns the server that containerd talks to.
func (d *Daemon) grpcServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(d.metrics.observe),
	)
	snapshotsapi.RegisterSnapshotsServer(s, snapshotservice.FromSnapshotter(d.snapshotter))
	diffapi.RegisterDiffServer(s, diffservice.FromApplierAndComparer(&countingApplier{d.differ, d.store, d.metrics, d.pulls, d.settleSecrets}, d.differ))
	return s
}

// serveGRPC serves until ctx ends.
func serveGRPC(ctx context.Context, s *grpc.Server, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		cut := time.AfterFunc(stopTimeout, s.Stop)
		defer cut.Stop()
		s.GracefulStop()
		return nil
	})
	return g.Wait()
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, log *slog.Logger, h http.Handler, l net.Listener) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := s.Shutdown(stop); err != nil {
			return s.Close()
		}
		return nil
	})
	return g.Wait()
}

// serveMetrics serves metrics at a port until ctx ends. If somebody else has the port, it is tried again.
func (d *Daemon) serveMetrics(ctx context.Context, address string) error {
	for said := false; ; said = true {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return serveHTTP(ctx, d.log, onlyMetrics(d.metrics.handler()), l)
		}
		if !said {
			d.log.Error("metrics are not served, but at the admin socket; trying again", "address", address, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(portRetry):
		}
	}
}

// onlyMetrics answers /metrics and nothing else.
func onlyMetrics(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	return mux
}
