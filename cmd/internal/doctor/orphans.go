package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/node"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// orphans looks for images that containerd unpacked into snapshots without metadata in ballastd:
// its root was wiped, or its metadata was lost. Pulls that share a layer with them fail.
func (d *Doctor) orphans(ctx context.Context, snapshotter string) {
	const check = "images"
	ctx, cancel := context.WithTimeout(ctx, node.AskTimeout)
	defer cancel()
	conn, err := d.Node.Dial()
	if err != nil {
		return // reported by loaded
	}
	defer conn.Close()
	var lost, fix []string
	err = node.EachNamespace(ctx, conn, func(ctx context.Context, ns string) error {
		names, err := orphansOf(ctx, conn, snapshotter)
		if len(names) > 0 {
			lost = append(lost, names...)
			fix = append(fix, fmt.Sprintf("ctr -n %s images rm --sync %s", ns, strings.Join(names, " ")))
		}
		return err
	})
	if err != nil {
		d.Warn(check, "", "images of containerd: %v", err)
		return
	}
	if len(lost) == 0 {
		d.OK(check, "all images that containerd unpacked with %s have their snapshots", snapshotter)
		return
	}
	d.Fail(check, strings.Join(fix, "; ")+"  # then pull them again",
		"ballastd does not have the snapshots of %d images that containerd unpacked, because its root was wiped or its metadata was lost: %s. Pulls that share a layer with them fail with \"already exists\" or \"not found\"",
		len(lost), strings.Join(lost, " "))
}

// orphansOf returns the names of such images in the namespace of ctx.
func orphansOf(ctx context.Context, conn *grpc.ClientConn, snapshotter string) ([]string, error) {
	all := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), snapshotter)
	return node.UnpackedImages(ctx, conn, snapshotter, func(ctx context.Context, snapshot string) (bool, error) {
		_, err := all.Stat(ctx, snapshot)
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
