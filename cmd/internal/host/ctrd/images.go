package ctrd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/verify"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of an image that is read.
const (
	maxDocument = 8 << 20 // bytes of a manifest or an index
	maxEntries  = 1000    // of an index and its nested indexes
)

// Images returns the images, the oldest first.
func (c *Client) Images(ctx context.Context) ([]images.Image, error) {
	list, err := imagesapi.NewImagesClient(c.conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("images of containerd: %w", errgrpc.ToNative(err))
	}
	all := make([]images.Image, 0, len(list.Images))
	for _, im := range list.Images {
		t := im.GetTarget()
		all = append(all, images.Image{
			Name: im.Name, Labels: im.Labels, CreatedAt: im.GetCreatedAt().AsTime(),
			Target: ocispec.Descriptor{MediaType: t.GetMediaType(), Digest: digest.Digest(t.GetDigest()), Size: t.GetSize()},
		})
	}
	slices.SortStableFunc(all, func(a, b images.Image) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all, nil
}

// A Manifest is a manifest of an image.
type Manifest struct {
	ocispec.Manifest
	Bytes []byte
}

// ErrUnreadable is the error of an image whose documents are damaged or too large.
var ErrUnreadable = errors.New("the image cannot be read")

// Manifests returns the manifests of an image that containerd has, read as leniently as containerd does; match, if
// not nil, chooses entries of an index. whole is false if containerd lacks some.
func (c *Client) Manifests(ctx context.Context, target ocispec.Descriptor, match platforms.Matcher) (all []Manifest, whole bool, err error) {
	left := maxEntries
	whole = true
	var read func(desc ocispec.Descriptor) error
	read = func(desc ocispec.Descriptor) error {
		p, err := c.Document(ctx, desc, maxDocument)
		if errdefs.IsNotFound(err) {
			whole = false
			return nil
		}
		if err != nil {
			return err
		}
		if !images.IsIndexType(desc.MediaType) {
			m := Manifest{Bytes: p}
			if json.Unmarshal(p, &m.Manifest) == nil && m.Config.Digest != "" { // otherwise it is no image
				all = append(all, m)
			}
			return nil
		}
		var index ocispec.Index
		if json.Unmarshal(p, &index) != nil {
			return nil // containerd cannot read it either
		}
		for _, d := range index.Manifests {
			if match != nil && d.Platform != nil && !match.Match(*d.Platform) {
				continue
			}
			if left--; left < 0 {
				return fmt.Errorf("more than %d entries: %w", maxEntries, ErrUnreadable)
			}
			if err := read(d); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(target); err != nil {
		return all, false, fmt.Errorf("image %s: %w", target.Digest, err)
	}
	return all, whole, nil
}

// Document reads a document of at most limit bytes from containerd's content store. One that is larger or damaged is
// ErrUnreadable.
func (c *Client) Document(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	info, err := c.Content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, err
	}
	desc.Size = info.Size
	ra, err := c.Content.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer ra.Close()
	p, err := verify.Read(content.NewReader(ra), desc.Digest, desc.Size, limit)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return p, err
}

// snapshotLabel is the label of the config of an image with the key of the snapshot of its last layer.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/garbage-collection.md
func snapshotLabel(snapshotter string) string { return "containerd.io/gc.ref.snapshot." + snapshotter }

// Unpacked returns the configs of the images that were unpacked into a snapshotter, with the keys of the snapshots of
// their last layers.
func (c *Client) Unpacked(ctx context.Context, snapshotter string) (map[digest.Digest]string, error) {
	label, keys := snapshotLabel(snapshotter), map[digest.Digest]string{}
	err := c.Content.Walk(ctx, func(i content.Info) error {
		if key := i.Labels[label]; key != "" {
			keys[i.Digest] = key
		}
		return nil
	}, fmt.Sprintf("labels.%q", label))
	return keys, err
}

// NotUnpacked has containerd forget that the image with a config was unpacked into a snapshotter. A config that does
// not exist is no error.
func (c *Client) NotUnpacked(ctx context.Context, snapshotter string, config digest.Digest) error {
	label := snapshotLabel(snapshotter)
	_, err := c.Content.Update(ctx, content.Info{Digest: config, Labels: map[string]string{label: ""}}, "labels."+label)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Named returns the names, sorted, of the images of which a manifest has a config that is chosen.
func (c *Client) Named(ctx context.Context, chosen func(config digest.Digest) bool) (names []string, err error) {
	all, err := c.Images(ctx)
	if err != nil {
		return nil, err
	}
	for _, im := range all {
		manifests, _, err := c.Manifests(ctx, im.Target, nil)
		if err != nil && !errors.Is(err, ErrUnreadable) {
			return nil, err
		}
		if slices.ContainsFunc(manifests, func(m Manifest) bool { return chosen(m.Config.Digest) }) {
			names = append(names, im.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
