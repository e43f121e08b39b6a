package containerdversion

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/pelletier/go-toml/v2"
)

// A File has the properties of a configuration file that matter for a drop-in that it imports. The
// zero value stands for no file.
type File struct {
	Format int // as in "version = 3"

	// OldTables reports whether the settings of CRI are in the table of formats 1 and 2. A file of
	// format 2 can have those of format 3 instead.
	OldTables bool
}

// The plugins of containerd with settings that ballast reads.
const (
	PluginDiff     = "io.containerd.service.v1.diff-service"
	PluginTransfer = "io.containerd.transfer.v1.local"
	PluginImages   = "io.containerd.cri.v1.images"
	PluginRuntime  = "io.containerd.cri.v1.runtime"
	PluginCRI      = "io.containerd.grpc.v1.cri" // images and runtime, before format 3
)

// Setting returns the value below keys in the tables of a configuration, or nil.
func Setting(tables map[string]any, keys ...string) any {
	var v any = tables
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

// ImageSetting returns a setting of CRI's image part, or nil, in the tables of plugins of any format.
func ImageSetting(plugins map[string]any, key string) any {
	if v := Setting(plugins, PluginImages, key); v != nil {
		return v
	}
	return Setting(plugins, PluginCRI, "containerd", key)
}

// Runtimes returns the tables of the runtime handlers, by name, in the tables of plugins.
func Runtimes(plugins map[string]any) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, plugin := range []string{PluginCRI, PluginRuntime} {
		runtimes, _ := Setting(plugins, plugin, "containerd", "runtimes").(map[string]any)
		for name, r := range runtimes {
			all[name], _ = r.(map[string]any)
		}
	}
	return all
}

// ReadFile reads a configuration file of containerd. A missing file is the zero File.
func ReadFile(path string) (File, error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, err
	}
	var c struct {
		Version int            `toml:"version"`
		Plugins map[string]any `toml:"plugins"`
	}
	if err := toml.Unmarshal(p, &c); err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	_, old := c.Plugins[PluginCRI]
	return File{Format: c.Version, OldTables: old}, nil
}

// DropIn returns the format of a file that a main file can import, and whether it has the tables of
// format 2.
//
// 1.7 supports format 2. All of 2.x support 3; 4 prevents 2.0 to 2.2 from starting. These also
// merge files as they are and take the format of the last for all: a file in format 3 disables the
// settings of CRI in a main file of format 2. What they then move from the old tables to the new
// ones replaces the existing settings.
// https://github.com/containerd/containerd/blob/v2.2.9/cmd/containerd/server/config/config.go
// https://github.com/containerd/containerd/blob/v2.2.9/plugins/cri/images/plugin.go
func (v Version) DropIn(main File) File {
	switch {
	case v.Before(Version{2, 0}):
		return File{2, true}
	case !v.MixesFormats() && main.Format == 2:
		return main
	}
	return File{3, false}
}
