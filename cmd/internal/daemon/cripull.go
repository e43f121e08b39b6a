package daemon

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/containerd/errdefs/pkg/errgrpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// criPull has containerd pull an image as for a pod, so that a kubelet finds it.
func (d *Daemon) criPull(ctx context.Context, r wire.FleetPullRequest) error {
	req := &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: r.Ref, UserSpecifiedImage: r.Ref, RuntimeHandler: r.Handler},
		SandboxConfig: &cri.PodSandboxConfig{
			Metadata:    &cri.PodSandboxMetadata{Name: "ballast", Namespace: "ballast", Uid: "ballast"}, // for logs; there is no such pod
			Annotations: map[string]string{containerdversion.HandlerAnnotation: r.Handler},
		},
	}
	if r.Handler == "" {
		req.SandboxConfig.Annotations = nil
	}
	if r.Username != "" || r.Password != "" {
		req.Auth = &cri.AuthConfig{Username: r.Username, Password: r.Password}
	}
	if _, err := cri.NewImageServiceClient(d.containerd.Conn()).PullImage(ctx, req); err != nil {
		return fmt.Errorf("containerd pulls %s: %w", r.Ref, errgrpc.ToNative(err))
	}
	return nil
}
