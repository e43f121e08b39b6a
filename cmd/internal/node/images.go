package node

import (
	"context"
	"slices"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"google.golang.org/grpc"
)

// Labels of containerd that lead from one document of an image to the next, and from its config to
// the snapshot of its last layer.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/garbage-collection.md
const (
	labelContent  = "containerd.io/gc.ref.content"
	labelSnapshot = "containerd.io/gc.ref.snapshot."
)

// UnpackedImages returns the names, sorted, of the images in the namespace of ctx that were unpacked into a snapshotter and of
// whose last snapshot this is true.
func UnpackedImages(ctx context.Context, conn *grpc.ClientConn, snapshotter string, is func(ctx context.Context, snapshot string) (bool, error)) ([]string, error) {
	above := map[string][]string{} // documents that refer to a document
	var next []string
	err := proxy.NewContentStore(conn).Walk(ctx, func(info content.Info) error {
		for k, v := range info.Labels {
			if strings.HasPrefix(k, labelContent) {
				above[v] = append(above[v], info.Digest.String())
			}
		}
		key := info.Labels[labelSnapshot+snapshotter]
		if key == "" {
			return nil
		}
		yes, err := is(ctx, key)
		if yes {
			next = append(next, info.Digest.String())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	of := map[string]bool{} // documents that lead to such a snapshot
	for len(next) > 0 {
		d := next[0]
		if next = next[1:]; !of[d] {
			of[d] = true
			next = append(next, above[d]...)
		}
	}
	images, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, im := range images.Images {
		if of[im.Target.Digest] {
			names = append(names, im.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
