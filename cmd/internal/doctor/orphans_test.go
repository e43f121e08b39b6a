package doctor

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
)

// itsContent, itsSnapshots and itsImages are of a containerd with the config of one unpacked image, and its snapshot
// unless that is lost.
type itsContent struct {
	contentapi.UnimplementedContentServer
}

func (itsContent) List(_ *contentapi.ListContentRequest, s contentapi.Content_ListServer) error {
	return s.Send(&contentapi.ListContentResponse{Info: []*contentapi.Info{
		{Digest: digest.FromString("config").String(), Labels: map[string]string{"containerd.io/gc.ref.snapshot.ballast": "key"}},
	}})
}

type itsSnapshots struct {
	snapshotsapi.UnimplementedSnapshotsServer
	lost bool
}

func (s itsSnapshots) Stat(_ context.Context, r *snapshotsapi.StatSnapshotRequest) (*snapshotsapi.StatSnapshotResponse, error) {
	if s.lost || r.Key != "key" {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	return &snapshotsapi.StatSnapshotResponse{Info: &snapshotsapi.Info{Name: r.Key, Kind: snapshotsapi.Kind_COMMITTED}}, nil
}

type itsImages struct {
	imagesapi.UnimplementedImagesServer
	listed int
}

func (i *itsImages) List(context.Context, *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	i.listed++
	return new(imagesapi.ListImagesResponse), nil
}

// TestOrphansCost lists images only if a snapshot is lost: the manifests of all would be read.
func TestOrphansCost(t *testing.T) {
	for _, lost := range []bool{false, true} {
		socket, images := filepath.Join(t.TempDir(), "s"), new(itsImages)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		contentapi.RegisterContentServer(s, itsContent{})
		snapshotsapi.RegisterSnapshotsServer(s, itsSnapshots{lost: lost})
		imagesapi.RegisterImagesServer(s, images)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Serve(l) // until Stop
		}()
		c, err := ctrd.Dial(socket, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := orphansOf(namespaces.WithNamespace(t.Context(), "default"), c, "ballast"); err != nil {
			t.Error(err)
		}
		if (images.listed > 0) != lost {
			t.Errorf("lost: %v, and the images were listed %d times", lost, images.listed)
		}
		c.Close()
		s.Stop()
		<-done
	}
}
