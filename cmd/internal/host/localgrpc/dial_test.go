package localgrpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// long is the patience of tests in which the server comes back.
const long = time.Minute

// A server is a gRPC server at a socket that can be stopped and started.
type server struct {
	t      *testing.T
	socket string
	stop   func()
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, socket: filepath.Join(t.TempDir(), "s"), stop: func() {}}
	t.Cleanup(func() { s.stop() })
	return s
}

// start listens when it returns.
func (s *server) start() {
	s.t.Helper()
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	g := grpc.NewServer()
	healthapi.RegisterHealthServer(g, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	s.stop = sync.OnceFunc(func() {
		g.Stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}

// calls are the two kinds of calls.
var calls = map[string]func(context.Context, *grpc.ClientConn) error{
	"unary": func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := healthapi.NewHealthClient(conn).Check(ctx, &healthapi.HealthCheckRequest{})
		return err
	},
	"stream": func(ctx context.Context, conn *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w, err := healthapi.NewHealthClient(conn).Watch(ctx, &healthapi.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return err
	},
}

func dial(t *testing.T, socket string, patience time.Duration) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(socket, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// fail makes calls until the connection is in a pause after a failure.
func fail(t *testing.T, conn *grpc.ClientConn, call func(context.Context, *grpc.ClientConn) error) {
	t.Helper()
	for conn.GetState() != connectivity.TransientFailure {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := call(ctx, conn); err == nil {
			t.Fatal("a call without a server succeeded")
		}
		cancel()
	}
}

// TestRestart calls a server at the moment when it has started again, as it happens when it has called the caller,
// after calls while it was away have failed; also while others call all the time.
func TestRestart(t *testing.T) {
	sockets := map[string]func(socket string) error{
		"socket that refuses": func(string) error { return nil },
		"missing socket":      os.Remove,
	}
	for kind, call := range calls {
		for away, leave := range sockets {
			for _, callers := range []int{0, 8} {
				name := kind + ", " + away
				if callers > 0 {
					name += ", under load"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s := newServer(t)
					s.start()
					conn := dial(t, s.socket, long)
					load(t, callers, conn)
					for range 5 {
						if err := call(t.Context(), conn); err != nil {
							t.Fatal(err)
						}
						s.stop()
						if err := leave(s.socket); err != nil {
							t.Fatal(err)
						}
						fail(t, conn, call)
						s.start()
					}
				})
			}
		}
	}
}

// load calls the server until the test ends, without looking at the results.
func load(t *testing.T, callers int, conn *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				short, end := context.WithTimeout(ctx, 20*time.Millisecond)
				for _, call := range calls {
					_ = call(short, conn)
				}
				end()
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

// TestAppears calls a server that starts during the call.
func TestAppears(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			conn := dial(t, s.socket, long)
			ended := make(chan error, 1)
			go func() { ended <- call(t.Context(), conn) }()
			for conn.GetState() != connectivity.TransientFailure {
				time.Sleep(time.Millisecond)
			}
			select {
			case err := <-ended:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			s.start()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDown calls a server that stays away: the error says why, when the patience or half of the time of the call is
// over.
func TestDown(t *testing.T) {
	for kind, call := range calls {
		for _, tt := range []struct {
			name           string
			patience, time time.Duration
		}{
			{"no patience", 0, time.Hour},
			{"patience", 200 * time.Millisecond, time.Hour},
			{"time", time.Hour, 4 * time.Second},
		} {
			t.Run(kind+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				conn := dial(t, filepath.Join(t.TempDir(), "s"), tt.patience)
				for i := range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), tt.time)
					began := time.Now()
					err := call(ctx, conn)
					cancel()
					if took := time.Since(began); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no such file or directory") || i == 0 && took < min(tt.patience, tt.time/8) {
						t.Errorf("after %v: %v", took, err)
					}
				}
			})
		}
	}
}

// Calls after one that waited in vain do not wait, until the server is there.
func TestWaitsOnce(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			conn := dial(t, s.socket, 2*time.Second)
			began := time.Now()
			for range 30 {
				if err := call(t.Context(), conn); status.Code(err) != codes.Unavailable {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > 30*time.Second { // of 60 if each waits
				t.Errorf("30 calls took %v", took)
			}
			s.start()
			if err := call(t.Context(), conn); err != nil {
				t.Errorf("when the server is there: %v", err)
			}
		})
	}
}

// TestEnds ends calls that wait.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(cancel func(), conn io.Closer){
		"context":    func(cancel func(), _ io.Closer) { cancel() },
		"connection": func(_ func(), conn io.Closer) { _ = conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := Dial(filepath.Join(t.TempDir(), "s"), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- calls["unary"](ctx, conn) }()
			for conn.GetState() != connectivity.TransientFailure {
				time.Sleep(time.Millisecond)
			}
			end(cancel, conn)
			err = <-ended
			closed := name == "connection" && status.Code(err) == codes.Unavailable // the picker may go after the state
			if status.Code(err) != codes.Canceled && !closed {
				t.Error(err)
			}
		})
	}
}
