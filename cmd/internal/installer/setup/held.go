package setup

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
)

// nameHeld replaces, in a list of mount points, those of containerd's mount manager that `ctr images mount` asked for
// by what ends them, with the plugin of the snapshotter or without. containerd keeps them for an hour, also when the
// mount that was asked for is gone.
func nameHeld(ctx context.Context, c *ctrd.Client, ns string, at []string) error {
	all, err := c.Activated(ctx)
	for _, m := range all {
		if !filepath.IsAbs(m.Name) {
			continue
		}
		for _, a := range m.Active {
			if i := slices.Index(at, a.MountPoint); i >= 0 {
				at[i] = fmt.Sprintf("%s (ctr -n %s leases rm --sync %[1]s)", m.Name, ns)
			}
		}
	}
	return err
}
