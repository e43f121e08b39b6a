package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Labels of containerd that lead from one document of an image to the next, and from its
// configuration to the snapshot of its last layer.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/garbage-collection.md
const (
	labelContent  = "containerd.io/gc.ref.content"
	labelSnapshot = "containerd.io/gc.ref.snapshot."
)

// orphans looks for images that containerd has unpacked into snapshots that ballastd does not know:
// its root was wiped, or its metadata was lost. Pulls that share a layer with them fail.
func (d *Doctor) orphans(ctx context.Context, snapshotter string) {
	const check = "images"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+d.Config.Containerd.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return // said by loaded
	}
	defer conn.Close()
	list, err := namespacesapi.NewNamespacesClient(conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		d.warn(check, "", "namespaces of containerd: %v", err)
		return
	}
	var lost, mend []string
	for _, ns := range list.Namespaces {
		names, err := orphansOf(namespaces.WithNamespace(ctx, ns.Name), conn, snapshotter)
		if err != nil {
			d.warn(check, "", "images of containerd's namespace %s: %v", ns.Name, err)
			return
		}
		if len(names) > 0 {
			lost = append(lost, names...)
			mend = append(mend, fmt.Sprintf("ctr -n %s images rm --sync %s", ns.Name, strings.Join(names, " ")))
		}
	}
	if len(lost) == 0 {
		d.ok(check, "all images that containerd has unpacked with %s have their snapshots", snapshotter)
		return
	}
	d.fail(check, strings.Join(mend, "; ")+"; then pull them again",
		"containerd has unpacked %d images into snapshots that ballastd does not have, because its root was wiped or its metadata lost: %s. Pulls that share a layer with them fail with \"already exists\" or \"not found\"",
		len(lost), strings.Join(lost, " "))
}

// orphansOf returns the names of such images in the namespace of ctx.
func orphansOf(ctx context.Context, conn *grpc.ClientConn, snapshotter string) ([]string, error) {
	stream, err := contentapi.NewContentClient(conn).List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return nil, err
	}
	above := map[string][]string{} // documents that refer to one
	lost := map[string]bool{}      // documents of images without snapshots
	var next []string
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, info := range res.Info {
			for k, v := range info.Labels {
				if strings.HasPrefix(k, labelContent) {
					above[v] = append(above[v], info.Digest)
				}
			}
			key := info.Labels[labelSnapshot+snapshotter]
			if key == "" {
				continue
			}
			_, err := snapshotsapi.NewSnapshotsClient(conn).Stat(ctx, &snapshotsapi.StatSnapshotRequest{Snapshotter: snapshotter, Key: key})
			switch {
			case status.Code(err) == codes.NotFound:
				next = append(next, info.Digest)
			case err != nil:
				return nil, err
			}
		}
	}
	for len(next) > 0 {
		d := next[0]
		if next = next[1:]; !lost[d] {
			lost[d] = true
			next = append(next, above[d]...)
		}
	}
	images, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, im := range images.Images {
		if lost[im.Target.Digest] {
			names = append(names, im.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
