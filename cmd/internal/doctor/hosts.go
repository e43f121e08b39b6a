package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/door/hostsfile"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	hostsconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
)

// hosts checks that every way to a tag through a registry with the facade leads only through the
// facade.
func (d *Doctor) hosts(ctx context.Context, h *wire.Health) {
	const check = "hosts.toml"
	if d.Config.Facade.Listen == "" {
		d.OK(check, "facade.listen is empty: only converted models can be pulled")
		d.signatures(nil, nil)
		return
	}
	var dirs []string
	if c := d.Node.Containerd; c != nil {
		dirs = c.HostsDirs()
	}
	dirs = append(dirs, d.HostsDirs...)
	if d.forDocker {
		dirs = append(dirs, config.DockerHostsDir)
	}
	var through, closed, open []string // registries
	bad := false
	dirs = distinct(dirs)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				d.Warn(check, "", "%v", err)
			}
			continue
		}
		for _, e := range entries {
			registry := snippet.RegistryOf(e.Name())
			sub := filepath.Join(dir, e.Name())
			if e.Name() == hostsfile.SpegelBackup || !d.Node.IsDir(sub) {
				continue
			}
			if !d.namesFacade(filepath.Join(sub, "hosts.toml")) {
				open = append(open, registry)
				continue
			}
			if used := snippet.Dir(dir, registry, d.Node.IsDir); used != sub {
				d.Fail(check, fmt.Sprintf("mv %s/hosts.toml %s/", sub, used), "%s has no effect: containerd reads %s, so models of %s arrive unconverted", sub, used, registry)
				bad = true
				continue
			}
			through = append(through, registry)
			shut, well := d.checkHosts(ctx, h, sub, registry)
			if shut {
				closed = append(closed, registry)
			} else {
				open = append(open, registry)
			}
			bad = bad || !well
		}
	}
	if d.replaced() {
		bad = true
	}
	d.signatures(closed, open)
	d.registries(ctx, h, dirs, closed)
	switch {
	case bad:
	case len(through) == 0:
		fix := "ballast config hosts REGISTRY --write"
		if len(dirs) > 0 && !slices.Contains(dirs, config.ContainerdHostsDir) {
			fix += " --hosts-dir " + dirs[0]
		}
		d.Warn(check, fix, "no hosts.toml in %s uses the facade at %s, so models of all registries arrive unconverted", cmp.Or(strings.Join(dirs, ", "), "any directory"), d.Config.Facade.Listen)
	default:
		d.OK(check, "tags resolve only through the facade: %s", strings.Join(distinct(through), ", "))
	}
}

// replaced reports whether a hosts.toml of setup is gone, or does not name the facade any more.
func (d *Doctor) replaced() (bad bool) {
	const check = "hosts.toml"
	for _, p := range hostsfile.Replaced(d.Config.Facade.Closed) {
		if d.namesFacade(p) { // checked as it is
			continue
		}
		bad = true
		registry := snippet.RegistryOf(filepath.Base(filepath.Dir(p)))
		switch who := hostsfile.Writer(d.Node.Root, p); {
		case who != "":
			d.Fail(check, fmt.Sprintf("take %s out of what %s writes, then ballast setup --force", registry, who), "%s was replaced by %s, so models of %s arrive unconverted", p, who, registry)
		case !d.Node.Exists(p):
			d.Fail(check, "ballast doctor --fix", "%s of ballast setup is gone, so models of %s arrive unconverted", p, registry)
		default:
			d.Fail(check, "ballast setup --force, which keeps that file", "%s was replaced, and does not lead to the facade: models of %s arrive unconverted", p, registry)
		}
	}
	return bad
}

// healing checks whether the images needed to start ballastd can be pulled while it is stopped.
func (d *Doctor) healing(ctx context.Context) {
	stuck, err := setup.Unreachable(ctx, "/")
	if err != nil {
		d.Warn("healing", "", "%v", err)
	}
	for _, s := range stuck {
		d.Warn("healing", "pull and pin the image (crictl pull), name it by digest, or open its registry: ballast setup --open HOST", "%s", s)
	}
}

// distinct returns the strings that are not empty, without duplicates, in order.
func distinct(all []string) []string {
	var out []string
	for _, s := range all {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// namesFacade reports whether a file contains the address of the facade.
func (d *Doctor) namesFacade(file string) bool {
	return hostsfile.Names(file, snippet.FacadeNames(d.Config.Facade.Listen))
}

// rewriteHosts is the command that writes the hosts.toml in a directory again. It leaves the file as it is if it fails.
func rewriteHosts(dir string) string {
	return "ballast config hosts " + snippet.RegistryOf(filepath.Base(dir)) + " --write --force --hosts-dir " + filepath.Dir(dir)
}

// checkKeys checks that a request to the facade with the keys of a hosts.toml is authenticated and
// answered.
func (d *Doctor) checkKeys(ctx context.Context, health *wire.Health, facade docker.RegistryHost, dir string) bool {
	const check = "hosts.toml"
	file := filepath.Join(dir, "hosts.toml")
	rewrite := rewriteHosts(dir)
	if facade.Scheme == "http" && !d.Config.Facade.InsecurePlainHTTP {
		d.Fail(check, rewrite, "%s uses plain HTTP to the facade, without keys: it gets no answer, and any process that has the port while ballastd is down could give one", file)
		return false
	}
	t, tls := facade.Client.Transport.(*http.Transport)
	if !tls && !d.Config.Facade.InsecurePlainHTTP { // with http:// and keys, containerd tries TLS first
		d.Fail(check, rewrite, "%s names the facade with http://: any process that has the port while ballastd is down could answer with plain HTTP, in spite of the keys", file)
		return false
	}
	if tls && t.TLSClientConfig.InsecureSkipVerify && facade.Scheme == "https" {
		d.Fail(check, "remove skip_verify from "+file, "%s accepts any process in place of the facade (skip_verify)", file)
		return false
	}
	if health == nil || health.FacadeHealth.Error != "" { // reported by other checks
		return true
	}
	err := d.ask(ctx, facade)
	if errors.Is(err, context.DeadlineExceeded) {
		d.Fail(check, "look at the load of the node and at journalctl -u ballastd, and run ballast doctor again", "%s: the facade did not answer within %v", file, facadeTimeout)
		return false
	}
	if err != nil {
		d.Fail(check, rewrite, "%s: the facade does not answer requests with the keys of this file: %v", file, err)
		return false
	}
	return true
}

// checkHosts checks one hosts.toml, read by containerd's own code, and reports whether it is closed,
// and whether all of it is well.
func (d *Doctor) checkHosts(ctx context.Context, health *wire.Health, dir, registry string) (closed, well bool) {
	const check = "hosts.toml"
	file := filepath.Join(dir, "hosts.toml")
	name := registry
	if registry == snippet.DefaultRegistry {
		name = "registry.invalid" // stands for any registry
	}
	all, err := hostsconfig.ConfigureHosts(ctx, hostsconfig.HostOptions{
		HostDir: func(string) (string, error) { return dir, nil },
	})(name)
	if errors.Is(err, fs.ErrPermission) {
		d.Warn(check, "run as root", "%s: %v", file, err)
		return false, false
	}
	if err != nil {
		d.Fail(check, rewriteHosts(dir)+", after ballastd has started", "%s: %v", file, err)
		return false, false
	}
	facade, others := -1, []string{}
	for i, h := range all {
		switch {
		case !h.Capabilities.Has(docker.HostCapabilityResolve):
		case slices.Contains(snippet.FacadeNames(d.Config.Facade.Listen), h.Host):
			if facade < 0 {
				facade = i
			}
		default:
			others = append(others, h.Scheme+"://"+h.Host)
		}
	}
	server := all[len(all)-1] // the registry itself comes last
	rewrite := rewriteHosts(dir)
	guarded := facade < 0 || d.checkKeys(ctx, health, all[facade], dir)
	switch {
	case facade < 0 && len(others) > 0:
		d.Fail(check, rewrite, "%s names the facade, but containerd does not use it for tags (it cannot read the file, or the entry has no \"resolve\"), so models of %s arrive unconverted", file, registry)
	case facade < 0:
		d.Fail(check, rewrite, "%s: no host has the capability \"resolve\"", file)
	case len(others) > 0 && registry == snippet.DefaultRegistry:
		d.Warn(check, rewrite+", or a directory for each registry with models",
			"%s is open: while the facade does not answer, tags resolve at the registry and models arrive unconverted", file)
	case len(others) > 0:
		d.Fail(check, fmt.Sprintf("in %s, above the first table: server = %q and capabilities = [\"pull\", \"push\"]", file, server.Scheme+"://"+server.Host),
			"%s fails open: while the facade does not answer, tags resolve at %s and models arrive unconverted", file, strings.Join(others, ", "))
	default:
		return true, guarded
	}
	return false, false
}
