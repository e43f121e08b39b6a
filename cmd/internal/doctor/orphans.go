package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// orphans looks for images that containerd unpacked into snapshots without metadata in ballastd:
// its root was wiped, or its metadata was lost. Pulls that share a layer with them fail.
func (d *Doctor) orphans(ctx context.Context, snapshotter string) {
	const check = "images"
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	c, err := d.Node.Dial()
	if err != nil {
		return // reported by loaded
	}
	defer c.Close()
	var lost, fix []string
	err = c.EachNamespace(ctx, func(ctx context.Context, ns string) error {
		names, err := orphansOf(ctx, c, snapshotter)
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
func orphansOf(ctx context.Context, c *ctrd.Client, snapshotter string) ([]string, error) {
	unpacked, err := c.Unpacked(ctx, snapshotter)
	if err != nil {
		return nil, err
	}
	all, lost := c.Snapshots(snapshotter), map[digest.Digest]bool{} // configs
	for config, key := range unpacked {
		_, err := all.Stat(ctx, key)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		if err != nil {
			lost[config] = true
		}
	}
	if len(lost) == 0 {
		return nil, nil // Named reads the manifests of all images
	}
	return c.Named(ctx, func(config digest.Digest) bool { return lost[config] })
}
