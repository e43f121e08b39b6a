package setup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
)

// settingsDir is where files of settings go.
const settingsDir = configDir + "/conf.d"

// noSettings is a file of settings that says nothing.
const noSettings = "version = 1\n"

// ReadSettings returns the files of settings in a directory of this process' file system, by name: *.toml.
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
		p, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		all[filepath.Base(n)] = string(p)
	}
	return all, nil
}

// settled returns the settings that are wanted, with empty ones in the place of those of the last set-up that are
// not: so ballastd is started anew without them, before anything is removed.
func (r *record) settled(wanted map[string]string) map[string]string {
	all := maps.Clone(wanted)
	if r == nil {
		return all
	}
	for name := range r.Options.Settings {
		if _, ok := all[name]; !ok {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = noSettings
		}
	}
	return all
}

// settings adds the files of settings. The configuration that was looked at has them already.
func (b *builder) settings() error {
	for _, name := range slices.Sorted(maps.Keys(b.o.Settings)) {
		if err := b.want(filepath.Join(settingsDir, name), []byte(b.o.Settings[name]), 0o644, daemonGroup, "settings of ballastd"); err != nil {
			return err
		}
	}
	return nil
}
