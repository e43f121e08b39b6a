package setup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
)

// settingsDir is the directory of settings files.
const settingsDir = configDir + "/conf.d"

// noSettings is the content of an empty settings file.
const noSettings = "version = 1\n"

// ReadSettings returns the settings files, *.toml, by name, in a directory of this process's file
// system. It returns errdefs.ErrInvalidArgument for one with the name of a file that setup writes itself.
func ReadSettings(dir string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.toml"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no *.toml files: %w", dir, errdefs.ErrNotFound)
	}
	all := map[string]string{}
	for _, n := range names {
		if p := filepath.Join(settingsDir, filepath.Base(n)); p == ownConfig || p == closedConfig {
			return nil, fmt.Errorf("--settings: leave %s out: setup writes %s itself: %w", n, p, errdefs.ErrInvalidArgument)
		}
		p, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		all[filepath.Base(n)] = string(p)
	}
	return all, nil
}

// withEmptied returns the wanted settings files, with empty ones in place of those of the last set-up
// that are not wanted: so ballastd is restarted without them before anything is removed.
func (r *record) withEmptied(wanted map[string]string) map[string]string {
	all := map[string]string{}
	if r != nil {
		for name := range r.Options.Settings {
			all[name] = noSettings
		}
	}
	maps.Copy(all, wanted)
	return all
}

// settings adds the settings files. The configuration in the view already includes them.
func (b *builder) settings() error {
	for _, name := range slices.Sorted(maps.Keys(b.o.Settings)) {
		if err := b.want(filepath.Join(settingsDir, name), []byte(b.o.Settings[name]), 0o644, daemonGroup, "settings of ballastd"); err != nil {
			return err
		}
	}
	return nil
}
