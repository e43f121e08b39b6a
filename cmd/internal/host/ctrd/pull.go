package ctrd

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/containerd/errdefs/pkg/errgrpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pull has containerd pull an image as for a pod, so that a kubelet finds it. handler is the runtime handler of the
// pod, or empty; auth are the credentials of a pull secret, or nil. It returns the name of the image by its config.
func (c *Client) Pull(ctx context.Context, ref, handler string, auth *cri.AuthConfig) (id string, err error) {
	req := &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: ref, UserSpecifiedImage: ref, RuntimeHandler: handler}, Auth: auth,
		SandboxConfig: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: "ballast", Namespace: "ballast", Uid: "ballast"}, // for logs; there is no such pod
		},
	}
	if handler != "" {
		req.SandboxConfig.Annotations = map[string]string{containerdversion.HandlerAnnotation: handler}
	}
	pulled, err := cri.NewImageServiceClient(c.conn).PullImage(ctx, req)
	if err != nil {
		return "", fmt.Errorf("containerd pulls %s: %w", ref, errgrpc.ToNative(err))
	}
	return pulled.ImageRef, nil
}
