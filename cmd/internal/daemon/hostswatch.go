package daemon

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/hostsfile"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
)

// hostsEvery is the interval between looks at hosts.toml files that cannot be watched: a user has a limited number of
// inotify instances.
const hostsEvery = time.Minute

// watchHosts logs, until ctx ends, which hosts.toml files of ballast setup were replaced or taken away, and by whom:
// without them, models of their registries are empty directories. The list of the files is read again when the
// configuration changes: setup closes registries when the daemon has started, and a restart for that would cut off
// readers.
func (d *Daemon) watchHosts(ctx context.Context) error {
	list := func() []config.HostsFile {
		again, err := config.Load(d.config.From)
		if err != nil {
			d.log.WarnContext(ctx, "the configuration cannot be read again; hosts.toml files are compared with the list of before", "err", err)
			return *d.closed.Load()
		}
		d.closed.Store(&again.Facade.Closed)
		return again.Facade.Closed
	}
	var before []string // what is known not to lead to the facade
	look := func(files []config.HostsFile) {
		now := slices.DeleteFunc(hostsfile.Replaced(files), func(p string) bool { return hostsfile.Names(p, snippet.FacadeNames(d.config.Facade.Listen)) })
		for _, p := range now {
			if !slices.Contains(before, p) {
				d.log.ErrorContext(ctx, "a hosts.toml does not lead to the facade any more: models of this registry arrive unconverted; see ballast doctor",
					"file", p, "registry", snippet.RegistryOf(filepath.Base(filepath.Dir(p))), "by", hostsfile.Writer("/", p))
			}
		}
		before = now
	}
	for warned := false; ; {
		err := hostsfile.Watch(ctx, config.DropIns(d.config.From), list, look)
		if err == nil { // ctx has ended
			return nil
		}
		if !warned {
			d.log.WarnContext(ctx, "changes of hosts.toml files cannot be watched, and are noticed within a minute", "err", err)
			warned = true
		}
		look(list())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(hostsEvery):
		}
	}
}
