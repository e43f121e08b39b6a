package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
)

// version returns the version of containerd, and reports what it lacks. If the version cannot be
// determined, the newest is assumed.
func (d *Doctor) version(ctx context.Context) containerdversion.Version {
	const check = "containerd version"
	v, err := d.ContainerdVersion(ctx)
	oldest, newest := containerdversion.Oldest, containerdversion.Newest
	switch {
	case err != nil:
		d.warn(check, "ballast doctor --containerd-version VERSION", "the version of containerd is unknown, so the other checks assume %s: %v", newest, err)
		return newest
	case v.Before(oldest):
		d.fail(check, fmt.Sprintf("install containerd %s", newest), "containerd %s is too old: ballast works with %s to %s", v, oldest, newest)
	case newest.Before(v):
		d.warn(check, "", "containerd %s is newer than the newest tested version, %s", v, newest)
	case !v.ImageVolumes():
		d.warn(check, "containerd 2.1 or later", "containerd %s has no image volumes: a model can only be the root file system of a container", v)
	case !v.SubPaths():
		d.ok(check, "%s; pods see the whole model in an image volume with subPath, which needs 2.2", v)
	default:
		d.ok(check, "%s", v)
	}
	return v
}

// imports returns the files that the main file imports, without those that they import themselves.
func (c *containerdConfig) imports() []string {
	var files []string
	for _, pattern := range c.Imports {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(c.file), pattern)
		}
		if found, err := filepath.Glob(pattern); err == nil { // bad patterns are already reported by containerd
			files = append(files, found...)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// formats checks that this version understands the formats of the main file and its imports.
func (d *Doctor) formats(ctx context.Context, c *containerdConfig) {
	const check = "containerd config"
	main, err := containerdversion.ReadFile(c.file)
	if err != nil || main == (containerdversion.File{}) {
		return // reported elsewhere
	}
	for _, file := range append([]string{c.file}, c.imports()...) {
		f, err := containerdversion.ReadFile(file)
		if err != nil {
			d.fail(check, "", "%v", err)
			continue
		}
		fix := "convert " + file + " to that format; see containerd config migrate"
		if sub, err := loadContainerd(ctx, file); err == nil && len(sub.ProxyPlugins) > 0 && file != c.file {
			fix = fmt.Sprintf("ballast config containerd --containerd-config %s > %s && %s", c.file, file, d.restart())
		}
		switch {
		case f.Format > c.version.MaxFormat():
			d.fail(check, fix, "%s has version = %d: containerd %s reads at most %d and does not start", file, f.Format, c.version, c.version.MaxFormat())
		case f.Format != 0 && f.Format != main.Format && !c.version.MixesFormats():
			d.fail(check, fix, "%s has version = %d and %s has %d: containerd %s uses one of them for both, so settings are lost", file, f.Format, c.file, main.Format, c.version)
		case file != c.file && f.OldTables && c.version.ReplacesTables():
			d.fail(check, fmt.Sprintf("write these settings into %s", c.file), "%s has settings of CRI: containerd %s uses only these, so those of %s are lost", file, c.version, c.file)
		}
	}
}

// runtimeHandlers checks that pulls for pods of a handler with our snapshotter use it.
func (d *Doctor) runtimeHandlers(c *containerdConfig, snapshotter string) {
	const check = "cri"
	for _, h := range c.handlers(snapshotter) {
		if got, _ := containerdversion.Setting(c.Plugins, containerdversion.PluginImages, "runtime_platforms", h, "snapshotter").(string); c.version.RuntimePlatforms() && got != snapshotter {
			d.fail(check, fmt.Sprintf("[plugins.%q.runtime_platforms.%q] platform = %q, snapshotter = %q", containerdversion.PluginImages, h, hostPlatform(), snapshotter),
				"containerd %s needs the snapshotter of the handler %s for pulls too: without it, models are unpacked elsewhere and refused", c.version, h)
		}
		if !c.version.HandlerInRequest() {
			d.warn(check, fmt.Sprintf("annotations: {%s: %s}", containerdversion.HandlerAnnotation, h),
				"containerd %s knows the handler %s of a pod from an annotation only; without it, pulls of models for these pods are refused", c.version, h)
		}
	}
}

// pullsLocally reports whether CRI pulls without the transfer service, because the version has no
// other way or a setting requires it.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go
func (c *containerdConfig) pullsLocally() bool {
	if !c.version.PullsByTransfer() {
		return true
	}
	for key, usual := range map[string]any{
		"use_local_image_pull": false, "discard_unpacked_layers": false, "disable_snapshot_annotations": true,
		"image_pull_with_sync_fs": false, "max_concurrent_downloads": int64(3),
	} {
		if v := containerdversion.ImageSetting(c.Plugins, key); v != nil && v != usual {
			return true
		}
	}
	for _, key := range []string{"mirrors", "configs", "auths"} {
		if m, ok := c.criRegistry(key).(map[string]any); ok && len(m) > 0 {
			return true
		}
	}
	return false
}

// tables returns the headers of the tables with CRI's snapshotter and its registries in this
// version of the configuration.
func (c *containerdConfig) tables() (images, registry string) {
	_, old := c.Plugins[containerdversion.PluginCRI]
	_, current := c.Plugins[containerdversion.PluginImages]
	if c.version.ReplacesTables() || old && !current {
		return fmt.Sprintf("[plugins.%q.containerd]", containerdversion.PluginCRI), fmt.Sprintf("[plugins.%q.registry]", containerdversion.PluginCRI)
	}
	return fmt.Sprintf("[plugins.%q]", containerdversion.PluginImages), fmt.Sprintf("[plugins.%q.registry]", containerdversion.PluginImages)
}
