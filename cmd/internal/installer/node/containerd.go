package node

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// Main returns the format of the main file.
func (c *Containerd) Main() containerdversion.File {
	if len(c.Files) > 0 && c.Files[0].Path == c.File {
		return c.Files[0].File
	}
	return containerdversion.File{}
}

// dropInDir returns a directory whose drop-ins are all imported by the main file, or conf.d beside it.
func (c *Containerd) dropInDir() (dir string, imported bool) {
	base := filepath.Dir(c.File)
	dir = filepath.Join(base, "conf.d")
	if len(c.Files) == 0 || c.Files[0].Path != c.File {
		return dir, false
	}
	for _, pattern := range slices.Backward(c.Files[0].imports) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(base, pattern)
		}
		if d := filepath.Dir(pattern); filepath.Base(pattern) == "*.toml" && !strings.Contains(d, "*") {
			return d, true
		}
	}
	return dir, false
}

// Setting returns a setting of a plugin, or nil.
func (c *Containerd) Setting(plugin string, keys ...string) any {
	return containerdversion.Setting(c.Plugins, append([]string{plugin}, keys...)...)
}

// From returns the file that a setting of a plugin comes from, or "": the last that has it.
func (c *Containerd) From(plugin string, keys ...string) string {
	for _, f := range slices.Backward(c.Files) {
		if containerdversion.Setting(f.plugins, append([]string{plugin}, keys...)...) != nil {
			return f.Path
		}
	}
	return ""
}

// snapshotter returns the snapshotter of pods whose runtime handler sets no other.
func (c *Containerd) snapshotter() string {
	s, _ := c.Setting(containerdversion.PluginImages, "snapshotter").(string)
	return s
}

// runtimes returns the tables of the runtime handlers by name.
func (c *Containerd) runtimes() map[string]map[string]any {
	all := map[string]map[string]any{}
	runtimes, _ := c.Setting(containerdversion.PluginRuntime, "containerd", "runtimes").(map[string]any)
	for name, r := range runtimes {
		all[name], _ = r.(map[string]any)
	}
	return all
}

// defaultRuntime returns the runtime handler of pods without a runtimeClass.
func (c *Containerd) defaultRuntime() string {
	s, _ := c.Setting(containerdversion.PluginRuntime, "containerd", "default_runtime_name").(string)
	return cmp.Or(s, "runc")
}

// DefaultHandler stands for the default handler of the node in lists of handlers.
const DefaultHandler = "default"

// HandlerLike returns the table of the runtime handler that a handler of ballast is like, the first of a list that
// containerd has, by default that of the default handler; nil stands for runc without options. It returns
// errdefs.ErrFailedPrecondition if there is none of them, if the handler of ballast has the name of another one, and
// errdefs.ErrUnavailable if the default handler would be taken on a host with a GPU whose handler is still to come.
func (h Host) HandlerLike(c *Containerd, like []string, ours string) (map[string]any, error) {
	all := c.runtimes()
	if t, ok := all[ours]; ok && t["snapshotter"] != snippet.Snapshotter {
		return nil, fmt.Errorf("the runtime handler %s%s is not ballast's: choose another name: %w", ours, c.fromFile(containerdversion.PluginRuntime, "containerd", "runtimes", ours), errdefs.ErrFailedPrecondition)
	}
	delete(all, ours)
	if len(like) == 0 {
		like = []string{DefaultHandler}
	}
	for i, name := range like {
		if table, ok := all[name]; ok {
			return table, nil
		}
		if name != DefaultHandler {
			continue
		}
		for _, absent := range like[:i] {
			if strings.HasPrefix(absent, "nvidia") && h.hasNVIDIA() {
				return nil, fmt.Errorf("this node has a GPU of NVIDIA, and containerd has no runtime handler %s yet: install NVIDIA's container toolkit or wait for the GPU operator to do it, or leave %s out of --like if devices come by CDI: %w", absent, absent, errdefs.ErrUnavailable)
			}
		}
		return all[c.defaultRuntime()], nil // nil if it is built in
	}
	return nil, fmt.Errorf("containerd has no runtime handler %s to be like, but %s (%q in --like is the default handler of a node): %w",
		strings.Join(like, ", "), strings.Join(slices.Sorted(maps.Keys(all)), ", "), DefaultHandler, errdefs.ErrFailedPrecondition)
}

// hasNVIDIA reports whether the host has a display or 3D controller of NVIDIA at a PCI bus.
// https://docs.kernel.org/PCI/sysfs-pci.html
func (h Host) hasNVIDIA() bool {
	const devices = "/sys/bus/pci/devices"
	names, _ := h.List(devices) // a host without PCI has none
	return slices.ContainsFunc(names, func(name string) bool {
		vendor, _ := h.Text(path.Join(devices, name, "vendor"))
		class, _ := h.Text(path.Join(devices, name, "class"))
		return strings.TrimSpace(vendor) == "0x10de" && strings.HasPrefix(class, "0x03")
	})
}

// handlers returns the runtime handlers with a snapshotter, sorted.
func (c *Containerd) handlers(snapshotter string) []string {
	var names []string
	for name, r := range c.runtimes() {
		if r["snapshotter"] == snapshotter {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Sandbox returns the sandbox image of pods.
func (c *Containerd) Sandbox() string {
	s, _ := c.Setting(containerdversion.PluginImages, "pinned_images", "sandbox").(string)
	return cmp.Or(s, c.Version.Sandbox())
}

// HostsDirs returns the directories of hosts.toml files that CRI uses.
func (c *Containerd) HostsDirs() []string {
	v, _ := c.Setting(containerdversion.PluginImages, "registry", "config_path").(string)
	if v == "" && c.Version.ConfigPathIsList() && len(c.Registry("mirrors")) == 0 {
		return []string{config.ContainerdHostsDir, config.DockerHostsDir}
	}
	return filepath.SplitList(v)
}

// Registry returns a table of CRI's registry settings from before hosts.toml files: mirrors, configs or auths.
func (c *Containerd) Registry(key string) map[string]any {
	m, _ := c.Setting(containerdversion.PluginImages, "registry", key).(map[string]any)
	return m
}

// Unpack assigns a differ to a snapshotter, for pulls of the transfer service.
type Unpack struct {
	Platform, Snapshotter, Differ string
	Keys                          []string // of the entry in the file, sorted
}

// Unpacks returns the entries of unpack_config.
func (c *Containerd) Unpacks() []Unpack {
	entries, _ := c.Setting(containerdversion.PluginTransfer, "unpack_config").([]any)
	var all []Unpack
	for _, e := range entries {
		m, _ := e.(map[string]any)
		u := Unpack{Keys: slices.Sorted(maps.Keys(m))}
		u.Platform, _ = m["platform"].(string)
		u.Snapshotter, _ = m["snapshotter"].(string)
		u.Differ, _ = m["differ"].(string)
		all = append(all, u)
	}
	return all
}

// Differs returns the differs of the diff-service, in their order; nil if none are set.
func (c *Containerd) Differs() []string {
	list, _ := c.Setting(containerdversion.PluginDiff, "default").([]any)
	return texts(list)
}

// texts returns the strings of a list.
func texts(list []any) []string {
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// A Difference is a setting that two configurations have differently.
type Difference struct {
	Keys          []string // its path: the plugin, then keys
	Before, After any      // nil if it is missing
}

// String returns the path of the setting.
func (d Difference) String() string { return strings.Join(d.Keys, ".") }

// Diff returns the settings of plugins and proxy plugins that differ, sorted. Lists and the tables in
// them are compared as a whole.
func Diff(before, after *Containerd) []Difference {
	var out []Difference
	diff(nil, before.Plugins, after.Plugins, &out)
	for name := range before.Proxies {
		if p, ok := after.Proxies[name]; !ok || !reflect.DeepEqual(p, before.Proxies[name]) {
			out = append(out, Difference{Keys: []string{"proxy_plugins", name}, Before: before.Proxies[name], After: p})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func diff(at []string, before, after map[string]any, out *[]Difference) {
	keys := maps.Clone(before)
	if keys == nil {
		keys = map[string]any{}
	}
	maps.Copy(keys, after)
	for k := range keys {
		a, z := before[k], after[k]
		path := append(slices.Clone(at), k)
		ta, isA := a.(map[string]any)
		tz, isZ := z.(map[string]any)
		switch {
		case (isA || a == nil) && (isZ || z == nil) && (isA || isZ):
			diff(path, ta, tz, out)
		case !reflect.DeepEqual(a, z):
			*out = append(*out, Difference{Keys: path, Before: a, After: z})
		}
	}
}
