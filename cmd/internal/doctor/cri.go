package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/platforms"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// askTimeout limits the time of a request to containerd.
const askTimeout = 5 * time.Second

// criRegistry returns a setting of CRI's registry part, from its table in this version of the file.
func (c *containerdConfig) criRegistry(key string) any {
	if v := containerdversion.Setting(c.Plugins, containerdversion.PluginImages, "registry", key); v != nil {
		return v
	}
	return containerdversion.Setting(c.Plugins, containerdversion.PluginCRI, "registry", key)
}

// hostsDirs returns the directories of hosts.toml files that CRI uses.
func (c *containerdConfig) hostsDirs() []string {
	v, _ := c.criRegistry("config_path").(string)
	if v == "" && c.version.ConfigPathIsList() {
		// https://github.com/containerd/containerd/blob/v2.4.2/plugins/cri/images/plugin.go
		v = "/etc/containerd/certs.d:/etc/docker/certs.d"
	}
	return filepath.SplitList(v)
}

// cri checks the settings that pulls and volumes of the kubelet depend on.
func (d *Doctor) cri(c *containerdConfig, snapshotter string) {
	const check = "cri"
	images, _ := c.tables()
	if m, ok := c.criRegistry("mirrors").(map[string]any); ok && len(m) > 0 {
		d.fail(check, "use hosts.toml files and config_path instead", "registry.mirrors is set, so CRI reads no hosts.toml and models arrive unconverted; with config_path as well, CRI does not start")
	}
	if c.criSnapshotter() == snapshotter {
		d.configPath(c)
		return
	}
	if len(c.handlers(snapshotter)) > 0 {
		d.configPath(c)
		d.runtimeHandlers(c, snapshotter)
		return
	}
	d.warn(check, fmt.Sprintf("%s snapshotter = %q, or a handler: ballast config containerd --runtime-handler NAME", images, snapshotter),
		"no pod uses %s, only ctr and nerdctl with --snapshotter", snapshotter)
}

// configPath checks where CRI's pulls look for hosts.toml: the transfer service takes the whole of
// config_path as one directory, even if it is a list, which is the default since 2.2.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/images/image_pull.go
func (d *Doctor) configPath(c *containerdConfig) {
	dirs, dir := c.hostsDirs(), "/etc/containerd/certs.d"
	if d.Config.Facade.Listen == "" || len(dirs) == 1 || len(dirs) > 1 && c.pullsLocally() {
		return
	}
	_, registry := c.tables()
	if len(dirs) == 0 {
		d.fail("cri", fmt.Sprintf("%s config_path = %q", registry, dir), "config_path is not set: pulls by CRI read no hosts.toml, so models arrive unconverted")
		return
	}
	d.fail("cri", fmt.Sprintf("%s config_path = %q", registry, dirs[0]),
		"config_path is the list %q, or is not set, which means a list: pulls by CRI treat it as one directory and find no hosts.toml, so models arrive unconverted", dirs)
}

// criSnapshotter returns the snapshotter of pods whose handler sets no other.
func (c *containerdConfig) criSnapshotter() string {
	s, _ := containerdversion.ImageSetting(c.Plugins, "snapshotter").(string)
	return s
}

// handlers returns the runtime handlers with a snapshotter.
func (c *containerdConfig) handlers(snapshotter string) []string {
	var names []string
	for name, r := range containerdversion.Runtimes(c.Plugins) {
		if r["snapshotter"] == snapshotter {
			names = append(names, name)
		}
	}
	return names
}

// hostPlatform returns the platform of this machine in containerd's format.
func hostPlatform() string { return platforms.Format(platforms.DefaultSpec()) }

// loaded checks which plugins containerd has loaded.
func (d *Doctor) loaded(ctx context.Context, c *containerdConfig, snapshotter, differ string) {
	const check = "containerd"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	plugins, err := askPlugins(ctx, d.Config.Containerd.Address)
	switch {
	case err != nil && errors.Is(unix.Access(d.Config.Containerd.Address, unix.W_OK), unix.EACCES):
		d.warn(check, "run as root", "cannot connect to %s: permission denied", d.Config.Containerd.Address)
		return
	case err != nil:
		d.warn(check, "systemctl start "+d.ContainerdUnit+"; or containerd.address in ballast's configuration", "%s does not answer: %v", d.Config.Containerd.Address, err)
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
			good = false // already reported from the configuration
			continue
		}
		p, ok := state[want.kind+"."+want.id]
		switch {
		case !ok:
			good = false
			d.fail(check, d.restart(), "the plugin %s of %s is not loaded: the configuration was changed after containerd was started", want.id, c.file)
		case p.InitErr != nil:
			good = false
			d.fail(check, "journalctl -u "+d.ContainerdUnit, "the plugin %s did not start: %s", want.id, p.InitErr.Message)
		case p.Exports["address"] != "" && !samePath(p.Exports["address"], d.Config.Address):
			good = false
			d.fail(check, d.restart(), "the plugin %s uses the socket %s", want.id, p.Exports["address"])
		}
	}
	if p := state["io.containerd.snapshotter.v1."+snapshotter]; p != nil && slices.Contains(p.Capabilities, "rebase") {
		if v, err := containerdversion.Running(ctx, d.Config.Containerd.Address); err != nil || !v.StagesLayers() {
			good = false
			d.fail(check, "ballast config containerd", "the configuration of containerd %s gives %s the capability \"rebase\", which needs containerd 2.4: layers that are unpacked in parallel would be wrong", v, snapshotter)
		}
	}
	if good {
		d.ok(check, "containerd at %s has loaded the plugins", d.Config.Containerd.Address)
		d.orphans(ctx, snapshotter)
	}
}

// askPlugins requests the plugins of the containerd at a socket.
func askPlugins(ctx context.Context, address string) ([]*introspection.Plugin, error) {
	conn, err := dialContainerd(address)
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

// dialContainerd returns a connection to containerd at a socket.
func dialContainerd(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
