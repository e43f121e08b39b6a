package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"strconv"

	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/cmd/internal/door/serve"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/diffservice"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// maxMessage is the largest gRPC message, in bytes, as in containerd.
// https://github.com/containerd/containerd/blob/v2.4.2/defaults/defaults.go
const maxMessage = 16 << 20 // 16 MiB

// listen opens both sockets or none.
func (d *Daemon) listen() (grpc, admin net.Listener, err error) {
	if grpc, err = serve.Unix(d.config.Address); err != nil {
		return nil, nil, err
	}
	if admin, err = serve.Unix(d.config.AdminAddress); err != nil {
		return nil, nil, errors.Join(err, grpc.Close())
	}
	return grpc, admin, nil
}

// openResolve opens the socket for users who are not root; nil if there is none. It returns
// errdefs.ErrFailedPrecondition if there is no such group.
func (d *Daemon) openResolve() (net.Listener, error) {
	r := d.config.Resolve
	if r.Group == "" {
		return nil, nil
	}
	g, err := user.LookupGroup(r.Group)
	if err != nil {
		return nil, fmt.Errorf("resolve.group: there is no group %q on this machine; make it (groupadd --system %[1]s) or set another: %w", r.Group, errdefs.ErrFailedPrecondition)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return nil, err
	}
	return serve.Group(r.Address, gid)
}

// grpcServer returns the gRPC server for containerd.
func (d *Daemon) grpcServer() *grpc.Server {
	s := grpc.NewServer(append(d.traces.GRPC(),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(d.metrics.Observe),
	)...)
	snapshotsapi.RegisterSnapshotsServer(s, snapshotservice.FromSnapshotter(d.snapshotter))
	diffapi.RegisterDiffServer(s, diffservice.FromApplierAndComparer(&jobs.Applier{Applier: d.differ, Jobs: d.jobs}, d.differ))
	return s
}

// serveMetrics serves only metrics, over TCP, until ctx ends.
func (d *Daemon) serveMetrics(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metrics.Handler())
	listen := func() (net.Listener, error) { return net.Listen("tcp", address) }
	return serve.Port(ctx, d.log, "metrics are served at the admin socket only; trying again", listen, mux)
}
