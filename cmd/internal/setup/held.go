package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	mountsapi "github.com/containerd/containerd/api/services/mounts/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nameHeld replaces, in a list of mount points, those of containerd's mount manager that `ctr images mount` asked for by what
// ends them, with the plugin of the snapshotter or without. containerd keeps them for an hour, also when the mount that was asked
// for is gone.
func nameHeld(ctx context.Context, conn grpc.ClientConnInterface, ns string, at []string) error {
	list, err := mountsapi.NewMountsClient(conn).List(ctx, &mountsapi.ListRequest{})
	if err != nil {
		return err
	}
	for {
		m, err := list.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Unimplemented { // containerd before 2.2 has none
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsAbs(m.Info.Name) {
			continue
		}
		for _, a := range m.Info.Active {
			if i := slices.Index(at, a.MountPoint); i >= 0 {
				at[i] = fmt.Sprintf("%s (ctr -n %s leases rm --sync %[1]s)", m.Info.Name, ns)
			}
		}
	}
}
