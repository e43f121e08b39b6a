package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/pelletier/go-toml/v2"
	"github.com/sirupsen/logrus"
)

// Changes are files as a plan would leave them, by path: their content, or nil for a file that is
// removed.
type Changes map[string][]byte

// A Containerd is the effective configuration of a containerd.
type Containerd struct {
	File    string                    // the main file
	Version containerdversion.Version // of the containerd that reads it
	Files   []File                    // all files, in the order in which containerd merges them

	// Plugins has the tables of plugins by name, and Proxies the proxy plugins. CRI's are in the
	// tables of format 3, whatever the files have.
	Plugins map[string]any
	Proxies map[string]srvconfig.ProxyPlugin
}

// A File is one file of a configuration of containerd.
type File struct {
	Path string
	containerdversion.File

	imports []string
	tables  map[string]any // as written
	plugins map[string]any // in the tables of format 3
}

// maxConfigFiles limits the number of files of a configuration.
const maxConfigFiles = 1000

// Load returns the configuration that containerd reads from a main file of the host with all its
// imports, if the host's files were changed first. A missing main file is read as an empty one, as
// containerd does. It returns errdefs.ErrFailedPrecondition, with the name of the file, for one that
// cannot be read.
//
// The files are read by the newest version's code; where an older version merges them otherwise,
// the result is that of the older one.
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
// https://github.com/containerd/containerd/blob/v1.7.35/services/server/config/config.go
func (h Host) Load(ctx context.Context, main string, v containerdversion.Version, changed Changes) (*Containerd, error) {
	c := &Containerd{File: main, Version: v}
	pending, seen := []string{main}, map[string]bool{}
	for len(pending) > 0 {
		p := pending[0]
		pending = pending[1:]
		if seen[p] {
			continue
		}
		if seen[p] = true; len(seen) > maxConfigFiles {
			return nil, fmt.Errorf("%s imports more than %d files: %w", main, maxConfigFiles, errdefs.ErrFailedPrecondition)
		}
		f, err := h.configFile(ctx, p, changed)
		if errors.Is(err, fs.ErrNotExist) && p == main {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", p, err, errdefs.ErrFailedPrecondition)
		}
		c.Files = append(c.Files, f)
		imports, err := h.resolve(p, f.imports, changed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", p, err, errdefs.ErrFailedPrecondition)
		}
		pending = append(pending, imports...)
	}
	if err := c.merge(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", main, err, errdefs.ErrFailedPrecondition)
	}
	return c, nil
}

// configFile reads one file.
func (h Host) configFile(ctx context.Context, p string, changed Changes) (File, error) {
	text, ok := changed[p]
	if ok && text == nil {
		return File{}, fs.ErrNotExist
	}
	if !ok {
		var err error
		if text, _, err = h.Read(p); err != nil {
			return File{}, err
		}
	}
	f := File{Path: p}
	if err := toml.Unmarshal(text, &f.tables); err != nil {
		return File{}, err
	}
	list, _ := f.tables["imports"].([]any)
	f.imports = texts(list)
	format, _ := f.tables["version"].(int64)
	_, old := containerdversion.Setting(f.tables, "plugins", containerdversion.PluginCRI).(map[string]any)
	f.File = containerdversion.File{Format: int(format), OldTables: old}
	alone, err := load(ctx, []map[string]any{f.tables})
	if err != nil {
		return File{}, err
	}
	f.plugins = alone.Plugins
	return f, nil
}

// resolve returns the files that a file imports.
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
func (h Host) resolve(parent string, imports []string, changed Changes) ([]string, error) {
	var out []string
	for _, pattern := range imports {
		pattern = filepath.Clean(pattern)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(parent), pattern)
		}
		if !strings.Contains(pattern, "*") {
			out = append(out, pattern)
			continue
		}
		found, err := h.glob(pattern)
		if err != nil {
			return nil, err
		}
		for p, text := range changed {
			if matched, err := filepath.Match(pattern, p); err != nil {
				return nil, err
			} else if matched && text != nil {
				found = append(found, p)
			}
		}
		slices.Sort(found)
		found = slices.DeleteFunc(slices.Compact(found), func(p string) bool {
			text, ok := changed[p]
			return ok && text == nil
		})
		out = append(out, found...)
	}
	return out, nil
}

// glob is filepath.Glob on the host.
func (h Host) glob(pattern string) ([]string, error) {
	dirs := []string{"/"}
	for _, part := range strings.Split(strings.TrimPrefix(pattern, "/"), "/") {
		var next []string
		for _, dir := range dirs {
			if !strings.ContainsAny(part, `*?[\`) {
				if p := filepath.Join(dir, part); h.Exists(p) {
					next = append(next, p)
				}
				continue
			}
			names, err := h.List(dir)
			if err != nil && h.IsDir(dir) {
				return nil, err
			}
			for _, n := range names {
				if matched, err := filepath.Match(part, n); err != nil {
					return nil, err
				} else if matched {
					next = append(next, filepath.Join(dir, n))
				}
			}
		}
		dirs = next
	}
	return dirs, nil
}

// merge sets the effective configuration from the files.
func (c *Containerd) merge(ctx context.Context) error {
	all := make([]map[string]any, len(c.Files))
	for i, f := range c.Files {
		all[i] = f.tables
	}
	if c.Version.ReplacesTables() && len(all) > 0 {
		whole := map[string]any{}
		for _, t := range all {
			plugins, _ := t["plugins"].(map[string]any)
			maps.Copy(whole, plugins)
		}
		last := maps.Clone(all[0])
		last["plugins"] = whole
		all = append(all, last)
	}
	merged, err := load(ctx, all)
	if err != nil {
		return err
	}
	c.Plugins, c.Proxies = merged.Plugins, merged.ProxyPlugins
	if c.Version.ReplacesTables() && len(all) > 0 {
		only, err := load(ctx, all[len(all)-1:])
		if err != nil {
			return err
		}
		c.Plugins = only.Plugins
	}
	return nil
}

// load has containerd merge files, from the first to the last. It reads files, so they are written to a
// temporary directory, with imports of each other.
func load(ctx context.Context, all []map[string]any) (c *srvconfig.Config, err error) {
	c = &srvconfig.Config{Version: version.ConfigVersion, Plugins: map[string]any{}, ProxyPlugins: map[string]srvconfig.ProxyPlugin{}}
	if len(all) == 0 {
		return c, nil
	}
	dir, err := os.MkdirTemp("", "ballast-containerd-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("%04d.toml", i)) }
	for i, tables := range all {
		tables = maps.Clone(tables)
		delete(tables, "imports")
		if i == 0 {
			var imports []string
			for k := 1; k < len(all); k++ {
				imports = append(imports, name(k))
			}
			tables["imports"] = imports
		}
		text, err := toml.Marshal(tables)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(name(i), text, 0o600); err != nil {
			return nil, err
		}
	}
	if err := srvconfig.LoadConfigWithPlugins(log.WithLogger(ctx, silent), name(0), criPlugins, c); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
	}
	delete(c.Plugins, containerdversion.PluginCRI) // its settings were moved
	return c, nil
}

// silent is the log of containerd's reader: its warnings are for containerd's own start.
var silent = logrus.NewEntry(&logrus.Logger{Out: io.Discard, Formatter: &logrus.TextFormatter{}, Hooks: logrus.LevelHooks{}})

// criPlugins returns the plugins of CRI, for the migration of their settings.
func criPlugins() iter.Seq[plugin.Registration] {
	return slices.Values([]plugin.Registration{{Type: "io.containerd.grpc.v1", ID: "cri", ConfigMigration: migrateCRI}})
}

// The settings of CRI's table of formats 1 and 2 that belong to images in format 3; others belong to the
// runtime.
// https://github.com/containerd/containerd/blob/v2.4.2/plugins/cri/images/plugin.go
// https://github.com/containerd/containerd/blob/v2.4.2/plugins/cri/runtime/plugin.go
var (
	imageSettings      = []string{"registry", "image_decryption", "max_concurrent_downloads", "image_pull_progress_timeout", "image_pull_with_sync_fs", "stats_collect_period"}
	containerdSettings = []string{"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"}
)

// migrateCRI moves the settings of CRI from the table of formats 1 and 2 to those of format 3.
func migrateCRI(_ context.Context, _ int, plugins map[string]any) error {
	src, ok := plugins[containerdversion.PluginCRI].(map[string]any)
	if !ok {
		return nil
	}
	table := func(parent map[string]any, name string) map[string]any {
		t, ok := parent[name].(map[string]any)
		if !ok {
			t = map[string]any{}
			parent[name] = t
		}
		return t
	}
	images, runtime := table(plugins, containerdversion.PluginImages), table(plugins, containerdversion.PluginRuntime)
	for k, v := range src {
		switch {
		case k == "sandbox_image":
			table(images, "pinned_images")["sandbox"] = v
		case slices.Contains(imageSettings, k):
			images[k] = v
		case k == "containerd":
			from, _ := v.(map[string]any)
			to := table(runtime, "containerd")
			for k, v := range from {
				if slices.Contains(containerdSettings, k) {
					images[k] = v
				} else if _, ok := to[k]; !ok {
					to[k] = v
				}
			}
		default:
			if _, ok := runtime[k]; !ok {
				runtime[k] = v
			}
		}
	}
	delete(plugins, containerdversion.PluginCRI)
	return nil
}
