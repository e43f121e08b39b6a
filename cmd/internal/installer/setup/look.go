package setup

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// A view is the state of a host before any change.
type view struct {
	*node.View
	record   *record  // nil if nothing was set up
	kept     versions // of files of others
	main     string   // the text of containerd's configuration file, "" if there is none
	hostsDir string   // of hosts.toml files
	docker   bool     // Docker has ballast, or gets it
	running  running

	noRestart bool // see Options.NoRestart

	unreadable error // why View.Containerd is missing
}

// disk returns the file system of the host.
func (v *view) disk() host { return host{v.Host} }

// recorded is look, and returns the view with errdefs.ErrNotFound, with what looks like ballast's, for a host
// that was not set up: without a record nothing on it is ours.
func recorded(ctx context.Context, o *Options) (*view, error) {
	v, err := look(ctx, o)
	if err != nil || v.record != nil {
		return v, err
	}
	found, err := v.foreign()
	if err != nil {
		return nil, err
	}
	why := "ballast is not set up on this node by \"ballast setup\""
	if len(found) > 0 {
		why += "; these files look like ballast's, and are left to you: " + strings.Join(found, ", ")
	}
	return v, fmt.Errorf("%s: %w", why, errdefs.ErrNotFound)
}

// foreign returns files that look like ballast's on a host without a record.
func (v *view) foreign() ([]string, error) {
	at, err := findImports(v.main)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.Distro.Config, err)
	}
	dir := filepath.Dir(v.Distro.Config)
	var candidates []string
	for _, name := range programs {
		candidates = append(candidates, filepath.Join(DefaultBinDir, name))
	}
	for _, u := range []string{serviceName, socketName} {
		candidates = append(candidates, filepath.Join(unitDir, u))
	}
	for _, d := range append(at.globDirs(dir), filepath.Join(dir, "conf.d")) {
		candidates = append(candidates, filepath.Join(d, dropInName))
	}
	named, err := v.named()
	if err != nil {
		return nil, err
	}
	for _, n := range named {
		candidates = append(candidates, v.hostsFile(n))
	}
	candidates = slices.DeleteFunc(candidates, func(p string) bool { return !v.Exists(p) })
	slices.Sort(candidates)
	return slices.Compact(candidates), nil
}

// look completes the choices of a set-up and reads the host.
func look(ctx context.Context, o *Options) (*view, error) {
	o.complete()
	h := hostAt(o.Host)
	v := &view{noRestart: o.NoRestart}
	var err error
	if v.record, err = h.readRecord(); err != nil {
		return nil, err
	}
	if v.kept, err = h.others(v.record); err != nil {
		return nil, err
	}
	o.Settings = v.record.withEmptied(o.Settings)
	c, err := h.config(o.Settings)
	if err != nil {
		return nil, err
	}
	about := node.Options{Root: o.Host, Distro: o.Distro, Config: c, Version: o.ContainerdVersion}
	if v.record != nil {
		about.Earlier = v.record.Containerd
	}
	if v.View, err = node.Look(ctx, about); v.View == nil || v.Containerd == nil && !errdefs.IsFailedPrecondition(err) {
		return nil, err
	}
	v.unreadable = err
	if v.main, err = v.Text(v.Distro.Config); err != nil {
		return nil, err
	}
	v.hostsDir = v.Distro.HostsDir
	if v.Containerd != nil && !v.Distro.ReadOnly {
		if dirs := v.Containerd.HostsDirs(); len(dirs) == 1 {
			v.hostsDir = dirs[0]
		}
	}
	v.docker = v.record != nil && v.record.Options.Docker
	v.ask(ctx)
	return v, nil
}

// config returns the configuration of ballast on the host, with the given settings files.
func (h host) config(settings map[string]string) (*config.Config, error) {
	p, err := h.Follow(configFile)
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
	if v.Config.Facade.Listen == "" || v.Config.Facade.InsecurePlainHTTP {
		return nil
	}
	return []string{facadetls.CAFile(v.Config.Root), facadetls.ClientFile(v.Config.Root)}
}

// haveKeys reports whether ballastd has created its keys.
func (v *view) haveKeys() bool {
	return !slices.ContainsFunc(v.keys(), func(k string) bool { return !v.Exists(k) })
}

// closed returns the registries whose hosts.toml allows only the facade to resolve tags, in the
// directory that containerd uses.
func (v *view) closed() ([]string, error) {
	all, err := v.named()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool {
		text, err := v.Text(v.hostsFile(name))
		return err == nil && name == snippet.DefaultRegistry && openForm(text)
	}), nil
}

// openForm reports whether a hosts.toml uses the facade first and the registry if the facade does
// not answer.
func openForm(text string) bool {
	return !strings.HasPrefix(text, "server") && !strings.Contains(text, "\nserver")
}

// named returns the registries whose hosts.toml contains the facade.
func (v *view) named() ([]string, error) {
	hosts, err := HostsOf(v.Config)
	if errdefs.IsFailedPrecondition(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := v.List(v.hostsDir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, n := range names {
		if !v.IsDir(filepath.Join(v.hostsDir, n)) {
			continue // a file of others
		}
		text, err := v.Text(filepath.Join(v.hostsDir, n, "hosts.toml"))
		if err != nil {
			return nil, err
		}
		if strings.Contains(text, hosts.Facade) {
			found = append(found, snippet.RegistryOf(n))
		}
	}
	return found, nil
}

// hostsFile returns the path of the hosts.toml of a registry.
func (v *view) hostsFile(registry string) string {
	return filepath.Join(snippet.Dir(v.hostsDir, registry, v.IsDir), "hosts.toml")
}

// hostsFiles returns the paths of the hosts.toml of a registry: that of containerd, and that of Docker if it has
// ballast.
func (v *view) hostsFiles(registry string) []string {
	files := []string{v.hostsFile(registry)}
	if v.docker && v.hostsDir != config.DockerHostsDir {
		files = append(files, filepath.Join(snippet.Dir(config.DockerHostsDir, registry, v.IsDir), "hosts.toml"))
	}
	return files
}
