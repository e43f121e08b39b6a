package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/unpacked"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// orphans looks for images that containerd unpacked into snapshots without metadata in ballastd:
// its root was wiped, or its metadata was lost. Pulls that share a layer with them fail.
func (d *Doctor) orphans(ctx context.Context, snapshotter string) {
	const check = "images"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := dialContainerd(d.Config.Containerd.Address)
	if err != nil {
		return // reported by loaded
	}
	defer conn.Close()
	list, err := namespacesapi.NewNamespacesClient(conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		d.warn(check, "", "namespaces of containerd: %v", err)
		return
	}
	var lost, fix []string
	for _, ns := range list.Namespaces {
		names, err := orphansOf(namespaces.WithNamespace(ctx, ns.Name), conn, snapshotter)
		if err != nil {
			d.warn(check, "", "images of containerd's namespace %s: %v", ns.Name, err)
			return
		}
		if len(names) > 0 {
			lost = append(lost, names...)
			fix = append(fix, fmt.Sprintf("ctr -n %s images rm --sync %s", ns.Name, strings.Join(names, " ")))
		}
	}
	if len(lost) == 0 {
		d.ok(check, "all images that containerd unpacked with %s have their snapshots", snapshotter)
		return
	}
	d.fail(check, strings.Join(fix, "; ")+"; then pull them again",
		"ballastd does not have the snapshots of %d images that containerd unpacked, because its root was wiped or its metadata was lost: %s. Pulls that share a layer with them fail with \"already exists\" or \"not found\"",
		len(lost), strings.Join(lost, " "))
}

// orphansOf returns the names of such images in the namespace of ctx.
func orphansOf(ctx context.Context, conn *grpc.ClientConn, snapshotter string) ([]string, error) {
	all := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), snapshotter)
	return unpacked.Images(ctx, conn, snapshotter, func(ctx context.Context, snapshot string) (bool, error) {
		_, err := all.Stat(ctx, snapshot)
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
