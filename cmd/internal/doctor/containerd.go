package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/version"
)

// containerdConfig is a loaded configuration of containerd.
type containerdConfig struct {
	*srvconfig.Config
	file    string
	version containerdversion.Version // of the containerd that reads it
}

// containerd checks the configuration of containerd and the plugins it has loaded. It returns nil
// if there is no readable configuration.
func (d *Doctor) containerd(ctx context.Context) *containerdConfig {
	const check = "containerd config"
	c, err := loadContainerd(ctx, d.ContainerdConfig)
	if err != nil {
		d.fail(check, "containerd config dump", "%s: %v", d.ContainerdConfig, err)
		return nil
	}
	c.version = d.version(ctx)
	before := len(d.findings)
	d.formats(ctx, c)
	snapshotter := d.proxySnapshotter(ctx, c)
	differ := d.proxyDiffer(ctx, c)
	if snapshotter != "" && differ != "" {
		d.diffService(c, differ)
		d.unpackConfig(c, snapshotter, differ)
		d.cri(c, snapshotter)
	}
	if len(d.findings) == before {
		d.ok(check, "%s: snapshotter %s and differ %s are configured", c.file, snapshotter, differ)
	}
	d.loaded(ctx, c, snapshotter, differ)
	return c
}

// loadContainerd reads a configuration with its imports, by containerd's own code. A missing file
// is read as an empty one, as containerd does.
func loadContainerd(ctx context.Context, file string) (*containerdConfig, error) {
	c := &srvconfig.Config{
		Version:      version.ConfigVersion,
		Plugins:      map[string]any{},
		ProxyPlugins: map[string]srvconfig.ProxyPlugin{},
	}
	err := srvconfig.LoadConfig(ctx, file, c)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &containerdConfig{Config: c, file: file}, nil
}

// proxySnapshotter returns the name of the proxy plugin with our snapshotter, or "".
func (d *Doctor) proxySnapshotter(ctx context.Context, c *containerdConfig) string {
	const check = "proxy_plugins"
	name, ok := d.proxy(ctx, c, "snapshot", snippet.Snapshotter)
	if !ok {
		return ""
	}
	p := c.ProxyPlugins[name]
	section := fmt.Sprintf("[proxy_plugins.%s.exports]", name)
	switch root := p.Exports["root"]; {
	case root == "":
		d.fail(check, fmt.Sprintf("%s root = %q", section, d.Config.Root), "%s has no exports.root, so the kubelet does not monitor the disk of the models", name)
	case !samePath(root, d.Config.Root):
		d.fail(check, fmt.Sprintf("%s root = %q", section, d.Config.Root), "%s has exports.root = %q%s, but ballastd has root = %q", name, root, otherDevice(root, d.Config.Root), d.Config.Root)
	}
	if p.Exports["enable_remote_snapshot_annotations"] != "true" {
		d.warn(check, section+` enable_remote_snapshot_annotations = "true"`, "%s has no enable_remote_snapshot_annotations = \"true\" (a string), so pulls do not say which image a layer belongs to", name)
	}
	return name
}

// otherDevice reports whether two directories are on different file systems.
func otherDevice(a, b string) string {
	da, errA := device(a)
	db, errB := device(b)
	if errA == nil && errB == nil && da != db {
		return " on another file system"
	}
	return ""
}

// proxyDiffer returns the name of the proxy plugin with our differ, or "".
func (d *Doctor) proxyDiffer(ctx context.Context, c *containerdConfig) string {
	name, _ := d.proxy(ctx, c, "diff", snippet.Differ)
	return name
}

// proxy returns the proxy plugin of a type with our socket. A plugin with our default name and
// another socket is a failure.
func (d *Doctor) proxy(ctx context.Context, c *containerdConfig, kind, usual string) (string, bool) {
	const check = "proxy_plugins"
	var names []string
	for name, p := range c.ProxyPlugins {
		if p.Type == kind && samePath(strings.TrimPrefix(p.Address, "unix://"), d.Config.Address) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 {
		if slices.Contains(names, usual) {
			return usual, true
		}
		return names[0], true
	}
	if p, ok := c.ProxyPlugins[usual]; ok {
		d.fail(check, fmt.Sprintf("[proxy_plugins.%s] type = %q, address = %q", usual, kind, d.Config.Address),
			"%s is of type %q at %s, but ballastd serves at %s", usual, p.Type, p.Address, d.Config.Address)
		return "", false
	}
	d.fail(check, d.addDropIn(ctx, c, usual), "containerd has no proxy plugin of type %q at %s", kind, d.Config.Address)
	return "", false
}

// addDropIn returns the command that writes our drop-in with the missing plugin, and makes
// containerd read it. It leaves out what is already done. containerd reads drop-ins only if its
// main file imports them.
func (d *Doctor) addDropIn(ctx context.Context, c *containerdConfig, plugin string) string {
	dir := filepath.Join(filepath.Dir(c.file), "conf.d")
	dropin := filepath.Join(dir, "ballast.toml")
	imports := fmt.Sprintf("imports = [%q]", filepath.Join(dir, "*.toml"))
	var steps []string
	sub, err := loadContainerd(ctx, dropin)
	if err != nil || sub.ProxyPlugins[plugin].Type == "" {
		steps = append(steps, fmt.Sprintf("mkdir -p %s && ballast config containerd > %s", dir, dropin))
	}
	if _, err := os.Stat(c.file); errors.Is(err, fs.ErrNotExist) {
		steps = append(steps, fmt.Sprintf(`printf 'version = %d\n%s\n' > %s`, c.version.DropIn(containerdversion.File{}).Format, imports, c.file))
	}
	fix := strings.Join(append(steps, d.restart()), " && ")
	if len(steps) == 0 {
		return fmt.Sprintf("write %s at the top of %s, which does not import %s; then %s", imports, c.file, dropin, fix)
	}
	return fix
}

// diffService checks which differs unpack for clients, and so for image volumes.
func (d *Doctor) diffService(c *containerdConfig, differ string) {
	const check = "diff-service"
	order := []string{defaults.DefaultDiffer}
	if v, ok := containerdversion.Setting(c.Plugins, containerdversion.PluginDiff, "default").([]any); ok {
		order = texts(v)
	}
	fix := fmt.Sprintf("[plugins.%q] default = [%q, \"walking\"]", containerdversion.PluginDiff, differ)
	ours, walking := slices.Index(order, differ), slices.Index(order, defaults.DefaultDiffer)
	switch {
	case ours < 0:
		d.fail(check, fix, "default = %q does not name %s: image volumes of models cannot be unpacked", order, differ)
	case walking >= 0 && walking < ours:
		d.fail(check, fix, "default = %q has walking before %s, and walking refuses models", order, differ)
	case ours == len(order)-1:
		d.fail(check, fix, "default = %q has no differ after %s for the layers of ordinary images: they cannot be unpacked", order, differ)
	}
}

// unpackConfig checks which differ unpacks for pulls.
func (d *Doctor) unpackConfig(c *containerdConfig, snapshotter, differ string) {
	const check = "unpack_config"
	fix := fmt.Sprintf("[[plugins.%q.unpack_config]] platform = %q, snapshotter = %q, differ = %q", containerdversion.PluginTransfer, hostPlatform(), snapshotter, differ)
	entries, ok := containerdversion.Setting(c.Plugins, containerdversion.PluginTransfer, "unpack_config").([]any)
	if !ok {
		d.fail(check, fix, "there is no entry for %s, so \"ctr images pull --snapshotter %s\" is refused", snapshotter, snapshotter)
		return
	}
	inEntry := fmt.Sprintf("in that entry of [[plugins.%q.unpack_config]]: differ = %q", containerdversion.PluginTransfer, differ)
	seen := map[string]string{} // the first entry of a snapshotter is used
	for _, e := range entries {
		m, _ := e.(map[string]any)
		name, _ := m["snapshotter"].(string)
		diff, _ := m["differ"].(string)
		if _, ok := seen[name]; !ok {
			seen[name] = diff
		}
	}
	switch got, ok := seen[snapshotter]; {
	case !ok:
		d.fail(check, fix, "there is no entry for %s, so \"ctr images pull --snapshotter %s\" is refused", snapshotter, snapshotter)
	case got == "":
		d.fail(check, inEntry, "the entry for %s has no differ: containerd uses walking, which refuses models", snapshotter)
	case got != differ:
		d.fail(check, inEntry, "the first entry for %s has differ = %q, which refuses models", snapshotter, got)
	}
	if _, ok := seen[defaults.DefaultSnapshotter]; !ok {
		d.warn(check, fmt.Sprintf("[[plugins.%q.unpack_config]] platform = %q, snapshotter = %q, differ = %q", containerdversion.PluginTransfer, hostPlatform(), defaults.DefaultSnapshotter, defaults.DefaultDiffer),
			"there is no entry for %s any more, so pulls with it are refused", defaults.DefaultSnapshotter)
	}
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
