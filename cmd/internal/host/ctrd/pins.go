package ctrd

import (
	"context"
	"fmt"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Labels of an image of CRI. A kubelet does not remove an image that CRI reports as pinned.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/labels/labels.go
const (
	LabelPinned = "io.cri-containerd.pinned"
	ValuePinned = "pinned"

	labelOurs  = "dev.ballast.pinned" // LabelPinned was set by PinImages
	labelModel = "dev.ballast.model/" // with a digest: PinImages knows the image by it
	labelTrue  = "true"
)

// MarkImage records that the image of CRI with a name is a model, for PinImages. It returns errdefs.ErrNotFound if
// there is no such image.
func (c *Client) MarkImage(ctx context.Context, name string, model digest.Digest) error {
	return c.label(namespaces.WithNamespace(ctx, Kubernetes), name, map[string]string{labelModel + model.String(): labelTrue})
}

// PinImages pins the marked images of some models, and ends the pins that earlier calls have set for others. It returns
// the models that have an image. A pin that somebody else has set stays.
func (c *Client) PinImages(ctx context.Context, models map[digest.Digest]bool) (map[digest.Digest]bool, error) {
	ctx = namespaces.WithNamespace(ctx, Kubernetes)
	all, err := c.Images(ctx)
	if err != nil {
		return nil, err
	}
	has := map[digest.Digest]bool{}
	for _, im := range all {
		wanted := false
		for k := range im.Labels {
			if d, ok := strings.CutPrefix(k, labelModel); ok && models[digest.Digest(d)] {
				wanted, has[digest.Digest(d)] = true, true
			}
		}
		switch {
		case wanted && im.Labels[LabelPinned] == "":
			err = c.label(ctx, im.Name, map[string]string{LabelPinned: ValuePinned, labelOurs: labelTrue})
		case !wanted && im.Labels[labelOurs] != "":
			err = c.label(ctx, im.Name, map[string]string{LabelPinned: "", labelOurs: ""})
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
	}
	return has, nil
}

// UnmarkImages removes all that MarkImage and PinImages have set.
func (c *Client) UnmarkImages(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, Kubernetes)
	all, err := c.Images(ctx)
	if err != nil {
		return err
	}
	for _, im := range all {
		ours := map[string]string{}
		for k := range im.Labels {
			if strings.HasPrefix(k, labelModel) {
				ours[k] = ""
			}
		}
		if im.Labels[labelOurs] != "" {
			ours[labelOurs], ours[LabelPinned] = "", ""
		}
		if err := c.label(ctx, im.Name, ours); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// label sets labels of an image, and removes those that are empty.
func (c *Client) label(ctx context.Context, name string, labels map[string]string) error {
	if len(labels) == 0 {
		return nil
	}
	req := &imagesapi.UpdateImageRequest{
		Image:      &imagesapi.Image{Name: name, Labels: labels, Target: &types.Descriptor{}}, // containerd crashes without a target
		UpdateMask: &fieldmaskpb.FieldMask{},
	}
	for k := range labels {
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, "labels."+k)
	}
	if _, err := imagesapi.NewImagesClient(c.conn).Update(ctx, req); err != nil {
		return fmt.Errorf("labels of the image %s: %w", name, errgrpc.ToNative(err))
	}
	return nil
}
