package localgrpc

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// Patience is how long the daemon waits for a containerd that is not there: a restart usually takes less.
const Patience = 5 * time.Second

// pauses are those between attempts to connect, while somebody waits and otherwise.
var pauses = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}

// handshake limits the time of one attempt: a busy server may need seconds for it.
const handshake = 20 * time.Second

// Dial returns a connection to the server at the socket with an absolute path. It connects on first use, and again
// when needed. A call waits for a server that is not there for patience, but no longer than half of the time that its
// context has, so that the error is that of the connection. After a call has waited in vain, others do not wait for
// as long, unless somebody listens at the socket again.
func Dial(socket string, patience time.Duration) (*grpc.ClientConn, error) {
	w := &waits{socket: socket, patience: patience}
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a local socket
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: handshake}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
			grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
			w.await(ctx, conn)
			return call(carried(ctx), method, req, reply, conn, o...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			w.await(ctx, conn)
			return open(carried(ctx), desc, conn, method, o...)
		}),
	)
}

// carried returns ctx with its namespace of containerd, if it has one, also for requests: that of a request which
// containerd has sent is in an incoming header.
func carried(ctx context.Context) context.Context {
	if ns, ok := namespaces.Namespace(ctx); ok {
		return namespaces.WithNamespace(ctx, ns)
	}
	return ctx
}

// A waits lets calls wait for the server at a socket.
type waits struct {
	socket   string
	patience time.Duration
	vain     atomic.Pointer[time.Time] // when the last wait of the whole patience ended; nil: none
}

// absent reports whether a call has just waited in vain, and nobody listens yet: a command that makes several calls
// waits once.
func (w *waits) absent() bool {
	if last := w.vain.Load(); last == nil || time.Since(*last) > w.patience {
		return false
	}
	c, err := net.DialTimeout("unix", w.socket, time.Second)
	if err == nil {
		c.Close()
	}
	return err != nil
}

// await returns when the connection is made, or could not be made in time. Why it could not is the error of the call
// that follows.
func (w *waits) await(ctx context.Context, conn *grpc.ClientConn) {
	s, patience := conn.GetState(), w.patience
	if s == connectivity.Ready || w.absent() {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn.Connect()
	if s == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
	for ; s != connectivity.Ready && s != connectivity.Shutdown; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			if patience == w.patience && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				now := time.Now()
				w.vain.Store(&now)
			}
			return
		}
	}
}
