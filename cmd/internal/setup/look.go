package setup

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// A view is the state of a host before any change.
type view struct {
	host
	distro  distro
	record  *record // nil if nothing was set up
	config  *config.Config
	systemd bool // it is the init system of the host

	main   string         // containerd's configuration file, "" if there is none
	parsed map[string]any // of main

	running *running
}

// find is look, and also returns the record of the host, or an equivalent one.
func find(ctx context.Context, o *Options) (*view, *record, error) {
	v, err := look(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	r, err := v.discover()
	return v, r, err
}

// look completes the choices of a set-up and reads the host.
func look(ctx context.Context, o *Options) (*view, error) {
	o.complete()
	h := host{o.Host}
	d, err := h.distroOf(o.Distro)
	if err != nil {
		return nil, err
	}
	v := &view{host: h, distro: d, systemd: h.isDir("/run/systemd/system")}
	if v.record, err = h.readRecord(); err != nil {
		return nil, err
	}
	o.Settings = v.record.settled(o.Settings)
	if v.config, err = h.config(o.Settings); err != nil {
		return nil, err
	}
	if a := v.config.Containerd.Address; a != config.Default().Containerd.Address {
		v.distro.socket = a // set by the operator, or written by setup
	}
	if v.main, err = h.text(d.config); err != nil {
		return nil, err
	}
	if err := toml.Unmarshal([]byte(v.main), &v.parsed); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", d.config, err, errdefs.ErrFailedPrecondition)
	}
	v.running = v.ask(ctx)
	return v, nil
}

// config returns the configuration of ballast on the host, with the given settings files.
func (h host) config(settings map[string]string) (*config.Config, error) {
	p, err := h.follow(configFile)
	if err != nil {
		return nil, err
	}
	return config.LoadHost(p, settings)
}

// HostsOf returns the parameters of a hosts.toml for the facade of a configuration. It returns
// errdefs.ErrFailedPrecondition if there is no facade.
func HostsOf(c *config.Config) (snippet.Hosts, error) {
	if c.Facade.Listen == "" {
		return snippet.Hosts{}, fmt.Errorf("facade.listen is empty, so there is no facade: %w", errdefs.ErrFailedPrecondition)
	}
	ip, port, err := net.SplitHostPort(c.Facade.Listen)
	if err != nil {
		return snippet.Hosts{}, err
	}
	hosts := snippet.Hosts{Facade: c.Facade.Listen}
	if a := net.ParseIP(ip); ip == "" || a != nil && a.IsUnspecified() {
		hosts.Facade = net.JoinHostPort("127.0.0.1", port) // one of all addresses
	}
	if !c.Facade.InsecurePlainHTTP {
		hosts.CA, hosts.Client = facadetls.CAFile(c.Root), facadetls.ClientFile(c.Root)
	}
	return hosts, nil
}

// keys returns the key files for hosts.toml, which ballastd creates.
func (v *view) keys() []string {
	if v.config.Facade.Listen == "" || v.config.Facade.InsecurePlainHTTP {
		return nil
	}
	return []string{facadetls.CAFile(v.config.Root), facadetls.ClientFile(v.config.Root)}
}

// haveKeys reports whether ballastd has created its keys.
func (v *view) haveKeys() bool {
	for _, k := range v.keys() {
		if !v.exists(k) {
			return false
		}
	}
	return true
}

// setting returns a value of containerd's main file, or nil.
func (v *view) setting(keys ...string) any { return containerdversion.Setting(v.parsed, keys...) }

// plugins returns the tables of plugins in containerd's main file.
func (v *view) plugins() map[string]any {
	plugins, _ := v.setting("plugins").(map[string]any)
	return plugins
}

// systemdCgroup reports whether runc uses systemd cgroups for containers.
func (v *view) systemdCgroup() bool {
	for _, r := range containerdversion.Runtimes(v.plugins()) {
		if yes, _ := containerdversion.Setting(r, "options", "SystemdCgroup").(bool); yes {
			return true
		}
	}
	return false
}

// defaultSandbox is the sandbox image of pods unless the configuration has another one.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go
const defaultSandbox = "registry.k8s.io/pause:3.10.2"

// sandbox returns the sandbox image of pods.
func (v *view) sandbox() string {
	for _, s := range []any{
		v.setting("plugins", containerdversion.PluginImages, "pinned_images", "sandbox"),
		v.setting("plugins", containerdversion.PluginCRI, "sandbox_image"),
	} {
		if s, ok := s.(string); ok && s != "" {
			return s
		}
	}
	return defaultSandbox
}

// closed returns the registries whose hosts.toml allows only the facade to resolve tags, in the
// directory that containerd uses.
func (v *view) closed() ([]string, error) {
	all, err := v.named()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool {
		text, err := v.text(v.hostsFile(name))
		return err == nil && name == snippet.DefaultRegistry && openForm(text)
	}), nil
}

// named returns the registries whose hosts.toml contains the facade.
func (v *view) named() ([]string, error) {
	hosts, err := HostsOf(v.config)
	if errdefs.IsFailedPrecondition(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := v.list(v.distro.hostsDir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, n := range names {
		text, err := v.text(filepath.Join(v.distro.hostsDir, n, "hosts.toml"))
		if err != nil {
			return nil, err
		}
		if strings.Contains(text, hosts.Facade) {
			found = append(found, snippet.RegistryOf(n))
		}
	}
	return found, nil
}
