package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// PortRetry is the pause between two attempts to listen: the process that has the port can end at
// any time.
const PortRetry = time.Second

// MaxHeader limits the header of a request, in bytes. Those of containerd have less than 1 KiB and
// a pull secret; the tokens of cloud registries have up to 12 KiB.
const MaxHeader = 64 << 10

// headerTimeout limits the time in which a client sends the headers of a request.
const headerTimeout = 10 * time.Second

// idleTimeout limits the time for which a connection without a request stays open.
const idleTimeout = 2 * time.Minute

// Unix listens at path, with a socket that only root can open. The socket is created under another
// name, gets its mode and is then renamed, so other users can never open it. A socket at path is
// replaced, unless a process answers there, for which Unix returns errdefs.ErrAlreadyExists.
func Unix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return listen(path, 0, 0o600)
}

// Group is Unix for a socket that a group can open, in a directory of its own that only the group can enter.
func Group(path string, gid int) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if st := info.Sys().(*syscall.Stat_t); !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s is not a directory that only root can change; use one of its own, such as /run/ballast-resolve: %w", dir, errdefs.ErrFailedPrecondition)
	}
	if err := errors.Join(os.Chown(dir, os.Geteuid(), gid), os.Chmod(dir, 0o750)); err != nil {
		return nil, err
	}
	return listen(path, gid, 0o660)
}

// listen is Unix in an existing directory, for a socket with a group and a mode.
func listen(path string, gid int, mode os.FileMode) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("socket %s: another process answers there: %w", path, errdefs.ErrAlreadyExists), c.Close())
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would unlink the temporary name
	if err := errors.Join(os.Chown(fresh, os.Geteuid(), gid), os.Chmod(fresh, mode)); err != nil {
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

// Close implements net.Listener.
func (l *unixListener) Close() error {
	err := l.Listener.Close()
	if err == nil {
		_ = os.Remove(l.path) // a stale socket is replaced at the next start
	}
	return err
}

// GRPC serves until ctx ends, which is not an error.
func GRPC(ctx context.Context, s *grpc.Server, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it started
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

// HTTP serves until ctx ends, which is not an error.
func HTTP(ctx context.Context, log *slog.Logger, h http.Handler, l net.Listener) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: MaxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return run(ctx, s, l)
}

// run serves until ctx ends.
func run(ctx context.Context, s *http.Server, l net.Listener) error {
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

// Limits of a request at a socket for users who are not root, and of its header in bytes.
const (
	publicTimeout = 5 * time.Second
	publicHeader  = 8 << 10
)

// Public is HTTP at a unix socket for small requests of users who may be hostile; see User. A connection has one
// request and ends after a few seconds, or when its user has too many.
func Public(ctx context.Context, log *slog.Logger, h http.Handler, l net.Listener) error {
	s := &http.Server{
		Handler: http.MaxBytesHandler(h, 0), ReadTimeout: publicTimeout, WriteTimeout: publicTimeout, MaxHeaderBytes: publicHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, userKey{}, c.(*userConn).uid)
		},
	}
	s.SetKeepAlivesEnabled(false)
	return run(ctx, s, &users{Listener: l})
}

// stopTimeout limits the time of running requests when the daemon stops. The kubelet and containerd
// retry requests that are cut off.
const stopTimeout = 5 * time.Second

// Port serves the listener of listen until ctx ends. While listen fails, it is retried; msg is
// logged once.
func Port(ctx context.Context, log *slog.Logger, msg string, listen func() (net.Listener, error), h http.Handler) error {
	for logged := false; ; logged = true {
		l, err := listen()
		if err == nil {
			return HTTP(ctx, log, h, l)
		}
		if !logged {
			log.Error(msg, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(PortRetry):
		}
	}
}
