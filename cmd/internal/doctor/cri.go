package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// askTimeout is how long containerd may take to answer.
const askTimeout = 5 * time.Second

// criSetting returns a setting of CRI's image part, where it is in this version of the file.
func (c *containerdConfig) criSetting(key string) any {
	if v := lookup(c.Plugins, pluginImages, key); v != nil {
		return v
	}
	return lookup(c.Plugins, pluginCRI, "containerd", key)
}

// criRegistry returns a setting of CRI's registry part, where it is in this version of the file.
func (c *containerdConfig) criRegistry(key string) any {
	if v := lookup(c.Plugins, pluginImages, "registry", key); v != nil {
		return v
	}
	return lookup(c.Plugins, pluginCRI, "registry", key)
}

// hostsDirs returns the directories of hosts.toml files that CRI uses.
func (c *containerdConfig) hostsDirs() []string {
	v, _ := c.criRegistry("config_path").(string)
	if v == "" {
		// https://github.com/containerd/containerd/blob/v2.4.2/plugins/cri/images/plugin.go
		v = "/etc/containerd/certs.d:/etc/docker/certs.d"
	}
	return filepath.SplitList(v)
}

// cri checks what the kubelet's pulls and volumes depend on.
func (d *Doctor) cri(c *containerdConfig, snapshotter string) {
	const check = "cri"
	section := fmt.Sprintf("[plugins.%q]", pluginImages)
	if v, ok := c.criSetting("disable_snapshot_annotations").(bool); ok && !v {
		d.fail(check, section+" disable_snapshot_annotations = true", "disable_snapshot_annotations = false makes CRI pull without the transfer service, so unpack_config is not used; ballast does not need it")
	}
	for key, fallback := range map[string]any{"discard_unpacked_layers": false, "image_pull_with_sync_fs": false, "max_concurrent_downloads": int64(3)} {
		if v := c.criSetting(key); v != nil && v != fallback {
			d.warn(check, fmt.Sprintf("%s %s = %v", section, key, fallback), "%s = %v makes CRI pull without the transfer service: blobs of models are downloaded by containerd as well", key, v)
		}
	}
	for _, key := range []string{"mirrors", "configs", "auths"} {
		if m, ok := c.criRegistry(key).(map[string]any); ok && len(m) > 0 {
			d.warn(check, "hosts.toml files instead; see config_path", "registry.%s makes CRI pull without the transfer service: blobs of models are downloaded by containerd as well", key)
		}
	}
	if c.criSnapshotter() == snapshotter || len(c.handlers(snapshotter)) > 0 {
		d.configPath(c)
		return
	}
	d.warn(check, fmt.Sprintf("%s snapshotter = %q, or a handler: ballast config containerd --runtime-handler NAME", section, snapshotter),
		"no pod uses %s; only ctr and nerdctl do, when they are told to", snapshotter)
}

// configPath checks where CRI's pulls look for hosts.toml: the transfer service takes the whole
// of config_path as one directory, also if it is a list, as it is by default.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/images/image_pull.go
func (d *Doctor) configPath(c *containerdConfig) {
	if dirs := c.hostsDirs(); len(dirs) > 1 && d.Config.Facade.Listen != "" {
		d.fail("cri", fmt.Sprintf("[plugins.%q.registry] config_path = %q", pluginImages, dirs[0]),
			"config_path is the list %q, or is not set, which means a list: CRI's pulls take it for one directory and find no hosts.toml, models arrive unconverted", dirs)
	}
}

// criSnapshotter returns the snapshotter of pods that no handler says otherwise for.
func (c *containerdConfig) criSnapshotter() string {
	s, _ := c.criSetting("snapshotter").(string)
	return s
}

// handlers returns the runtime handlers with a snapshotter.
func (c *containerdConfig) handlers(snapshotter string) []string {
	var names []string
	for _, plugin := range []string{pluginRuntime, pluginCRI} {
		runtimes, _ := lookup(c.Plugins, plugin, "containerd", "runtimes").(map[string]any)
		for name := range runtimes {
			if lookup(runtimes, name, "snapshotter") == snapshotter {
				names = append(names, name)
			}
		}
	}
	return names
}

// hostPlatform returns the platform of this machine in containerd's words.
func hostPlatform() string { return platforms.Format(platforms.DefaultSpec()) }

// loaded asks containerd which plugins it has.
func (d *Doctor) loaded(ctx context.Context, c *containerdConfig, snapshotter, differ string) {
	const check = "containerd"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	plugins, err := askPlugins(ctx, d.Config.Containerd.Address)
	if err != nil {
		d.warn(check, "systemctl start containerd; or containerd.address in "+"ballast's configuration", "%s does not answer: %v", d.Config.Containerd.Address, err)
		return
	}
	state := map[string]*introspection.Plugin{}
	for _, p := range plugins {
		state[p.Type+"."+p.ID] = p
	}
	good := true
	for _, want := range []struct{ kind, id string }{
		{"io.containerd.snapshotter.v1", snapshotter}, {"io.containerd.differ.v1", differ},
		{"io.containerd.service.v1", "diff-service"}, {"io.containerd.transfer.v1", "local"},
	} {
		if want.id == "" {
			good = false // the configuration has said so
			continue
		}
		p, ok := state[want.kind+"."+want.id]
		switch {
		case !ok:
			good = false
			d.fail(check, "systemctl restart containerd", "the plugin %s of %s is not loaded; the configuration has changed since containerd was started", want.id, c.file)
		case p.InitErr != nil:
			good = false
			d.fail(check, "journalctl -u containerd", "the plugin %s did not start: %s", want.id, p.InitErr.Message)
		case p.Exports["address"] != "" && !samePath(p.Exports["address"], d.Config.Address):
			good = false
			d.fail(check, "systemctl restart containerd", "the plugin %s leads to %s", want.id, p.Exports["address"])
		}
	}
	if good {
		d.ok(check, "containerd at %s has the plugins loaded", d.Config.Containerd.Address)
		d.orphans(ctx, snapshotter)
	}
}

// askPlugins asks containerd at a socket for its plugins.
func askPlugins(ctx context.Context, address string) ([]*introspection.Plugin, error) {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	res, err := introspection.NewIntrospectionClient(conn).Plugins(ctx, &introspection.PluginsRequest{})
	if err != nil {
		return nil, err
	}
	return res.Plugins, nil
}
