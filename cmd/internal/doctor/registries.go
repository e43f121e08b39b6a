package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// registries has ballastd ask the closed registries of directories of hosts.toml files. An earlier ballastd cannot.
func (d *Doctor) registries(ctx context.Context, h *wire.Health, dirs, closed []string) {
	const check = "registries"
	closed = slices.DeleteFunc(distinct(closed), func(r string) bool { return r == snippet.DefaultRegistry })
	if h == nil || len(closed) == 0 {
		return
	}
	all, err := d.Client.Reached(ctx, closed[:min(len(closed), wire.MaxReached)])
	if err != nil {
		if !errdefs.IsNotImplemented(err) {
			d.Warn(check, "", "ballastd was asked whether registries answer: %v", err)
		}
		return
	}
	var well []string
	for _, r := range all {
		switch {
		case r.Error == nil:
			well = append(well, r.Registry)
		case errdefs.IsFailedPrecondition(r.Error), errdefs.IsInvalidArgument(r.Error):
			fix := "correct that file"
			if strings.Contains(r.Error.Message, "certificate") {
				fix = fmt.Sprintf("put the CA of the registry into %s, where ballastd and containerd read it", filepath.Join(snippet.Dir(dirs[0], r.Registry, d.Node.IsDir), "ca.crt"))
			}
			d.Fail(check, fix, "no pull from %s can succeed: %v", r.Registry, r.Error)
		default:
			d.Warn(check, "if this node should reach it, look at its name in DNS, the firewall, and the proxy in /etc/default/ballastd; upstream.offline lists registries that are never asked", "%s does not answer ballastd: %v", r.Registry, r.Error)
		}
	}
	if len(well) > 0 {
		d.OK(check, "ballastd reaches %s", strings.Join(well, ", "))
	}
}
