package daemon

import (
	"context"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/node"
	"github.com/ballast-dev/ballast/cmd/internal/setup"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
)

// watchHosts logs, until ctx ends, which hosts.toml files of ballast setup were replaced or taken away, and by whom:
// without them, models of their registries are empty directories.
func (d *Daemon) watchHosts(ctx context.Context) error {
	err := setup.WatchHosts(ctx, "/", func(paths []string) {
		for _, p := range paths {
			if !snippet.NamesFacade(p, d.config.Facade.Listen) {
				d.log.ErrorContext(ctx, "a hosts.toml does not lead to the facade any more: models of this registry arrive unconverted; see ballast doctor",
					"file", p, "registry", snippet.RegistryOf(filepath.Base(filepath.Dir(p))), "by", (node.Host{Root: "/"}).HostsWriter(p))
			}
		}
	})
	if err != nil {
		d.log.WarnContext(ctx, "changes of hosts.toml files are not noticed; ballast doctor finds them", "err", err)
	}
	return nil
}
