package daemon

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/host/localgrpc"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"google.golang.org/grpc"
)

// TestWatchdogAsks looks whether the daemon works while it looks for snapshots that containerd has recorded and that
// do not exist: the snapshot that the former asks for is none of these.
func TestWatchdogAsks(t *testing.T) {
	d := newDaemon(t, filepath.Join(t.TempDir(), "root"))
	s := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(s, snapshotservice.FromSnapshotter(d.snapshotter))
	l, err := net.Listen("unix", d.config.Address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := localgrpc.Dial(d.config.Address, localgrpc.Patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	missing, err := d.snapshotter.Missing(func() error { return d.works(t.Context(), conn, time.Minute) })
	if err != nil || len(missing) > 0 {
		t.Errorf("missing: %q, %v", missing, err)
	}
}
