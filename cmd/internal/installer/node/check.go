package node

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/platforms"
)

// A Checker checks a configuration of containerd: whether ballast works with it, and what else it does.
type Checker struct {
	Host   Host
	Config *config.Config // of ballast
	Unit   string         // of containerd

	Findings
	c *Containerd
}

// What the checks are called in findings.
const (
	CheckConfig  = "containerd config"
	checkProxies = "proxy_plugins"
	checkDiff    = "diff-service"
	checkUnpack  = "unpack_config"
	CheckCRI     = "cri"
)

// Check checks a configuration. It returns the names of the proxy plugins that are ballast's, "" if it
// has none.
func (k *Checker) Check(c *Containerd) (snapshotter, differ string) {
	k.c = c
	before := len(k.Findings)
	k.formats()
	snapshotter = k.proxySnapshotter()
	differ, _ = k.proxy("diff", snippet.Differ)
	if snapshotter != "" && differ != "" {
		k.diffService(differ)
		k.unpackConfig(snapshotter, differ)
		k.cri(snapshotter)
	}
	if len(k.Findings) == before {
		k.OK(CheckConfig, "%s: snapshotter %s and differ %s are configured", c.File, snapshotter, differ)
		k.synced()
	}
	k.neighbours(cmp.Or(snapshotter, snippet.Snapshotter))
	return snapshotter, differ
}

// restart returns the command that restarts containerd.
func (k *Checker) restart() string { return "systemctl restart " + k.Unit }

// formats checks that this version understands the formats of the main file and its imports.
func (k *Checker) formats() {
	c, main := k.c, k.c.Main()
	if main == (containerdversion.File{}) {
		return
	}
	tables := map[string]string{} // the file that has the table of a plugin
	for _, f := range c.Files {
		fix := "convert " + f.Path + " to that format; see containerd config migrate"
		if f.Path != c.File && f.has(k.Config.Address) {
			fix = fmt.Sprintf("ballast config containerd --containerd-config %s > %s && %s", c.File, f.Path, k.restart())
		}
		switch {
		case f.Format > c.Version.MaxFormat():
			k.Fail(CheckConfig, fix, "%s has version = %d: containerd %s reads at most %d and does not start", f.Path, f.Format, c.Version, c.Version.MaxFormat())
		case f.Format != 0 && f.Format != main.Format && !c.Version.MixesFormats():
			k.Fail(CheckConfig, fix, "%s has version = %d and %s has %d: containerd %s uses one of them for both, so settings are lost", f.Path, f.Format, c.File, main.Format, c.Version)
		}
		if !c.Version.ReplacesTables() {
			continue
		}
		plugins, _ := f.tables["plugins"].(map[string]any)
		for name := range plugins {
			if first, ok := tables[name]; ok {
				k.Fail(CheckConfig, fmt.Sprintf("write the settings of both into %s", first),
					"%s and %s have settings of %s: containerd %s uses only those of the last", first, f.Path, name, c.Version)
			} else {
				tables[name] = f.Path
			}
		}
	}
}

// has reports whether a file has a proxy plugin at a socket.
func (f *File) has(socket string) bool {
	proxies, _ := f.tables["proxy_plugins"].(map[string]any)
	for _, p := range proxies {
		p, _ := p.(map[string]any)
		if at, _ := p["address"].(string); strings.TrimPrefix(at, "unix://") == socket {
			return true
		}
	}
	return false
}

// proxySnapshotter returns the name of the proxy plugin with our snapshotter, or "".
func (k *Checker) proxySnapshotter() string {
	name, ok := k.proxy("snapshot", snippet.Snapshotter)
	if !ok {
		return ""
	}
	p := k.c.Proxies[name]
	section := fmt.Sprintf("[proxy_plugins.%s.exports]", name)
	switch root := p.Exports["root"]; {
	case root == "":
		k.Fail(checkProxies, fmt.Sprintf("%s root = %q", section, k.Config.Root), "%s has no exports.root, so the kubelet does not monitor the disk of the models", name)
	case !k.Host.same(root, k.Config.Root):
		k.Fail(checkProxies, fmt.Sprintf("%s root = %q", section, k.Config.Root), "%s has exports.root = %q%s, but ballastd has root = %q", name, root, k.otherDevice(root, k.Config.Root), k.Config.Root)
	}
	if p.Exports["enable_remote_snapshot_annotations"] != "true" {
		k.Warn(checkProxies, section+` enable_remote_snapshot_annotations = "true"`, "%s has no enable_remote_snapshot_annotations = \"true\" (a string), so pulls do not say which image a layer belongs to", name)
	}
	return name
}

// same reports whether two paths of the host are the same after following symbolic links.
func (h Host) same(a, b string) bool {
	fa, errA := h.Follow(a)
	fb, errB := h.Follow(b)
	return errA == nil && errB == nil && filepath.Clean(fa) == filepath.Clean(fb)
}

// otherDevice says whether two directories are on different file systems.
func (k *Checker) otherDevice(a, b string) string {
	device := func(p string) (uint64, error) {
		name, err := k.Host.Follow(p)
		if err != nil {
			return 0, err
		}
		info, err := os.Stat(name)
		if err != nil {
			return 0, err
		}
		return uint64(info.Sys().(*syscall.Stat_t).Dev), nil
	}
	da, errA := device(a)
	db, errB := device(b)
	if errA == nil && errB == nil && da != db {
		return " on another file system"
	}
	return ""
}

// ProxiesAt returns the names, sorted, of the proxy plugins of a type at a socket of the host.
func (h Host) ProxiesAt(c *Containerd, kind, socket string) []string {
	var names []string
	for name, p := range c.Proxies {
		if p.Type == kind && h.same(strings.TrimPrefix(p.Address, "unix://"), socket) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// proxy returns the proxy plugin of a type with our socket. A plugin with our default name and
// another socket is a failure.
func (k *Checker) proxy(kind, usual string) (string, bool) {
	names := k.Host.ProxiesAt(k.c, kind, k.Config.Address)
	switch p, ok := k.c.Proxies[usual]; {
	case slices.Contains(names, usual):
		return usual, true
	case len(names) > 0:
		return names[0], true
	case ok:
		k.Fail(checkProxies, fmt.Sprintf("[proxy_plugins.%s] type = %q, address = %q", usual, kind, k.Config.Address),
			"%s is of type %q at %s, but ballastd serves at %s", usual, p.Type, p.Address, k.Config.Address)
	default:
		k.Fail(checkProxies, k.addDropIn(usual), "containerd has no proxy plugin of type %q at %s", kind, k.Config.Address)
	}
	return "", false
}

// RecordFile is the record of "ballast setup".
const RecordFile = "/var/lib/ballast-setup/setup.json"

// addDropIn returns the command that writes our drop-in with the missing plugin, and makes
// containerd read it. It leaves out what is already done. containerd reads drop-ins only if its
// main file imports them.
func (k *Checker) addDropIn(plugin string) string {
	if k.Host.Exists(RecordFile) { // with the choices of the operator
		return "ballast doctor --fix"
	}
	dir, imported := k.c.dropInDir()
	if d, err := k.Host.distro(Auto); err == nil && d.Generated && d.Config == k.c.File && !imported { // from templates
		return "ballast setup"
	}
	dropin := filepath.Join(dir, "ballast.toml")
	imports := fmt.Sprintf("imports = [%q]", filepath.Join(dir, "*.toml"))
	var steps []string
	text, err := k.Host.Text(dropin)
	if err != nil || !strings.Contains(text, "[proxy_plugins."+plugin+"]") {
		steps = append(steps, fmt.Sprintf("mkdir -p %s && ballast config containerd > %s", dir, dropin))
	}
	if !k.Host.Exists(k.c.File) {
		steps = append(steps, fmt.Sprintf(`printf 'version = %d\n%s\n' > %s`, k.c.Version.DropIn(containerdversion.File{}).Format, imports, k.c.File))
	}
	fix := strings.Join(append(steps, k.restart()), " && ")
	if len(steps) == 0 {
		return fmt.Sprintf("write %s at the top of %s, which does not import %s; then %s", imports, k.c.File, dropin, fix)
	}
	return fix
}

// fromFile names the file that a setting comes from, for a message.
func (c *Containerd) fromFile(plugin string, keys ...string) string {
	if f := c.From(plugin, keys...); f != "" {
		return " (" + f + ")"
	}
	return ""
}

// diffService checks which differs unpack for clients, and so for image volumes.
func (k *Checker) diffService(differ string) {
	order := k.c.Differs()
	if order == nil {
		order = []string{defaults.DefaultDiffer}
	}
	at := k.c.fromFile(containerdversion.PluginDiff, "default")
	fix := fmt.Sprintf("[plugins.%q] default = [%q, \"walking\"]", containerdversion.PluginDiff, differ)
	ours, walking := slices.Index(order, differ), slices.Index(order, defaults.DefaultDiffer)
	switch {
	case ours < 0:
		k.Fail(checkDiff, fix, "default = %q%s does not name %s: image volumes of models cannot be unpacked", order, at, differ)
	case walking >= 0 && walking < ours:
		k.Fail(checkDiff, fix, "default = %q%s has walking before %s, and walking refuses models", order, at, differ)
	case ours == len(order)-1:
		k.Fail(checkDiff, fix, "default = %q%s has no differ after %s for the layers of ordinary images: they cannot be unpacked", order, at, differ)
	}
}

// synced says whether ordinary images that were just pulled survive a power cut. It is no limit of ballast:
// those of overlayfs are the same.
func (k *Checker) synced() {
	if on, _ := k.c.Setting(containerdversion.PluginDiff, "sync_fs").(bool); on {
		k.OK(checkDiff, "the layers of ordinary images are synced")
		return
	}
	if on, _ := k.c.Setting(containerdversion.PluginImages, "image_pull_with_sync_fs").(bool); on {
		k.OK(checkDiff, "the layers of ordinary images of pods are synced")
		return
	}
	set := fmt.Sprintf("[plugins.%q] sync_fs = true", containerdversion.PluginDiff)
	if k.c.Version.ReplacesTables() { // that table is in the drop-in of ballast
		set = fmt.Sprintf("[plugins.%q] image_pull_with_sync_fs = true", containerdversion.PluginCRI)
	}
	k.OK(checkDiff, "ordinary images are not synced: one that was just pulled can be damaged by a power cut, as with overlayfs; %s prevents that", set)
}

// HostPlatform returns the platform of this machine in containerd's format.
func HostPlatform() string { return platforms.Format(platforms.DefaultSpec()) }

// unpackConfig checks which differ unpacks for pulls.
func (k *Checker) unpackConfig(snapshotter, differ string) {
	entry := func(snapshotter, differ string) string {
		return fmt.Sprintf("[[plugins.%q.unpack_config]] platform = %q, snapshotter = %q, differ = %q", containerdversion.PluginTransfer, HostPlatform(), snapshotter, differ)
	}
	at := k.c.fromFile(containerdversion.PluginTransfer, "unpack_config")
	inEntry := fmt.Sprintf("in that entry of [[plugins.%q.unpack_config]]: differ = %q", containerdversion.PluginTransfer, differ)
	first := map[string]string{} // the first entry of a snapshotter is used
	for _, u := range k.c.Unpacks() {
		if _, ok := first[u.Snapshotter]; !ok {
			first[u.Snapshotter] = u.Differ
		}
	}
	switch got, ok := first[snapshotter]; {
	case !ok:
		k.Fail(checkUnpack, entry(snapshotter, differ), "there is no entry for %s%s, so \"ctr images pull --snapshotter %s\" is refused", snapshotter, at, snapshotter)
	case got == "":
		k.Fail(checkUnpack, inEntry, "the entry for %s%s has no differ: containerd uses walking, which refuses models", snapshotter, at)
	case got != differ:
		k.Fail(checkUnpack, inEntry, "the first entry for %s%s has differ = %q, which refuses models", snapshotter, at, got)
	}
	if _, ok := first[defaults.DefaultSnapshotter]; !ok && len(first) > 0 {
		k.Warn(checkUnpack, entry(defaults.DefaultSnapshotter, defaults.DefaultDiffer),
			"there is no entry for %s any more%s, so pulls with it are refused", defaults.DefaultSnapshotter, at)
	}
}

// cri checks the settings that pulls and volumes of the kubelet depend on.
func (k *Checker) cri(snapshotter string) {
	if m := k.c.Registry("mirrors"); len(m) > 0 {
		k.Fail(CheckCRI, "use hosts.toml files and config_path instead", "registry.mirrors%s is set, so CRI reads no hosts.toml and models arrive unconverted; with config_path as well, CRI does not start",
			k.c.fromFile(containerdversion.PluginImages, "registry", "mirrors"))
	}
	images, _ := k.tables()
	switch {
	case k.c.snapshotter() == snapshotter:
		k.configPath()
	case len(k.c.handlers(snapshotter)) > 0:
		k.configPath()
		k.runtimeHandlers(snapshotter)
	default:
		k.Warn(CheckCRI, fmt.Sprintf("%s snapshotter = %q, or a handler: ballast config containerd --runtime-handler NAME", images, snapshotter),
			"no pod uses %s, only ctr and nerdctl with --snapshotter", snapshotter)
	}
}

// configPath checks where CRI's pulls look for hosts.toml: the transfer service takes the whole of
// config_path as one directory, even if it is a list, which is the default since 2.2.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/images/image_pull.go
func (k *Checker) configPath() {
	dirs := k.c.HostsDirs()
	if k.Config.Facade.Listen == "" || len(dirs) == 1 || len(dirs) > 1 && k.c.pullsLocally() {
		return
	}
	_, registry := k.tables()
	if len(dirs) == 0 {
		k.Fail(CheckCRI, fmt.Sprintf("%s config_path = %q", registry, config.ContainerdHostsDir), "config_path is not set: pulls by CRI read no hosts.toml, so models arrive unconverted")
		return
	}
	k.Fail(CheckCRI, fmt.Sprintf("%s config_path = %q", registry, dirs[0]),
		"config_path is the list %q%s, or is not set, which means a list: pulls by CRI treat it as one directory and find no hosts.toml, so models arrive unconverted",
		dirs, k.c.fromFile(containerdversion.PluginImages, "registry", "config_path"))
}

// runtimeHandlers checks that pulls for pods of a handler with our snapshotter use it.
func (k *Checker) runtimeHandlers(snapshotter string) {
	c := k.c
	for _, h := range c.handlers(snapshotter) {
		if got, _ := c.Setting(containerdversion.PluginImages, "runtime_platforms", h, "snapshotter").(string); c.Version.RuntimePlatforms() && got != snapshotter {
			k.Fail(CheckCRI, fmt.Sprintf("[plugins.%q.runtime_platforms.%q] platform = %q, snapshotter = %q", containerdversion.PluginImages, h, HostPlatform(), snapshotter),
				"containerd %s needs the snapshotter of the handler %s for pulls too: without it, models are unpacked elsewhere and refused", c.Version, h)
		}
		if !c.Version.HandlerInRequest() {
			k.Warn(CheckCRI, fmt.Sprintf("annotations: {%s: %s}", containerdversion.HandlerAnnotation, h),
				"containerd %s knows the handler %s of a pod from an annotation only; without it, pulls of models for these pods are refused", c.Version, h)
		}
	}
}

// pullsLocally reports whether CRI pulls without the transfer service, because the version has no
// other way or a setting requires it.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go
func (c *Containerd) pullsLocally() bool {
	if !c.Version.PullsByTransfer() {
		return true
	}
	for key, usual := range map[string]any{
		"use_local_image_pull": false, "discard_unpacked_layers": false, "disable_snapshot_annotations": true,
		"image_pull_with_sync_fs": false, "max_concurrent_downloads": int64(3),
	} {
		if v := c.Setting(containerdversion.PluginImages, key); v != nil && v != usual {
			return true
		}
	}
	return slices.ContainsFunc([]string{"mirrors", "configs", "auths"}, func(key string) bool { return len(c.Registry(key)) > 0 })
}

// tables returns the headers of the tables with CRI's snapshotter and its registries, as the main file
// writes them.
func (k *Checker) tables() (images, registry string) {
	if k.c.Version.ReplacesTables() || k.c.Main().OldTables {
		return fmt.Sprintf("[plugins.%q.containerd]", containerdversion.PluginCRI), fmt.Sprintf("[plugins.%q.registry]", containerdversion.PluginCRI)
	}
	return fmt.Sprintf("[plugins.%q]", containerdversion.PluginImages), fmt.Sprintf("[plugins.%q.registry]", containerdversion.PluginImages)
}
