package snapshotter

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// overlayName is the name of a snapshotter that renames as overlayfs does, for the suite.
const overlayName = "overlayfs"

func TestSuite(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way)+"/direct", func(t *testing.T) {
			testsuite.SnapshotterSuite(t, overlayName, func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
				s, done, err := openAt(root, way)
				return s, done, err
			})
		})
		t.Run(string(way)+"/grpc", func(t *testing.T) {
			testsuite.SnapshotterSuite(t, overlayName, func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
				return serveAt(root, way)
			})
		})
	}
}

func openAt(root string, way tree.Backend) (*Snapshotter, func() error, error) {
	st, err := store.Open(filepath.Join(root, "store"), store.Options{})
	if err != nil {
		return nil, nil, err
	}
	s, err := New(filepath.Join(root, "snapshots"), st, Options{Show: way})
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return s, func() error { return errors.Join(s.Close(), st.Close()) }, nil
}

// serveAt returns a snapshotter that is reached through a unix socket, as by containerd.
func serveAt(root string, way tree.Backend) (snapshots.Snapshotter, func() error, error) {
	s, done, err := openAt(root, way)
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(root, "s.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(s))
	var g errgroup.Group
	g.Go(func() error { return server.Serve(l) })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		server.Stop()
		return nil, nil, errors.Join(err, g.Wait(), done())
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "ballast"), func() error {
		err := conn.Close()
		server.GracefulStop()
		return errors.Join(err, g.Wait(), done())
	}, nil
}
