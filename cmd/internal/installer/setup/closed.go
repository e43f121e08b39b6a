package setup

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// closedConfig has the hosts.toml files of closed registries, with their digests. ballastd watches them, and doctor
// compares them.
const closedConfig = settingsDir + "/00-closed.toml"

// registries adds the hosts.toml files. They come last: they need the keys of the facade.
func (b *builder) registries() error {
	closed := b.o.Registries
	refuse, notes, open, err := b.heal(b.o, closed)
	if err != nil {
		return err
	}
	if len(refuse) > 0 && !b.o.Force && !b.fixing {
		return fmt.Errorf("%s. Pull it now (crictl pull), if it is then pinned; or name it by digest; or use another registry; or leave that registry open; --force ignores this: %w", strings.Join(refuse, "; "), errdefs.ErrFailedPrecondition)
	}
	b.plan.Notes = append(b.plan.Notes, append(refuse, notes...)...)
	if len(closed) == 0 {
		return b.stale(noGroup)
	}
	hosts, err := HostsOf(b.Config)
	if err != nil {
		return err
	}
	later := !b.haveKeys() && (b.o.NoService || b.o.NoRestart)
	if later {
		b.plan.Pending = append(b.plan.Pending, "hosts.toml")
		b.note("the hosts.toml files of %s can be written when ballastd has created its keys: run this command again when ballastd is running", strings.Join(closed, ", "))
	}
	from := len(b.plan.Steps)
	for _, r := range open { // before _default is closed
		text, err := b.openHosts(r, b.hostsFile(r))
		if err != nil {
			return err
		}
		if err := b.want(b.hostsFile(r), text, 0o644, noGroup, "the node needs images of "+r+", and _default is closed"); err != nil {
			return err
		}
	}
	for _, r := range closed {
		for _, p := range b.hostsFiles(r) {
			if err := b.closeRegistry(hosts, r, p, later); err != nil {
				return err
			}
		}
	}
	if err := b.list(closed, from); err != nil {
		return err
	}
	return b.stale(noGroup)
}

// closeRegistry adds the hosts.toml at a path of a registry.
func (b *builder) closeRegistry(hosts snippet.Hosts, registry, p string, later bool) error {
	if later {
		if f, ours := b.old[p]; ours {
			b.files[p] = f
		}
		return nil
	}
	hosts.Registry, hosts.PlainHTTP = registry, local(registry)
	why := "tags of " + registry + " go through the facade"
	have, err := b.Text(p)
	if err != nil {
		return err
	}
	if snippet.HasPlainHTTP(have, registry) {
		hosts.PlainHTTP = true // as written by "ballast config hosts --plain-http"
	}
	names, err := b.List(filepath.Dir(p))
	if err != nil {
		return err
	}
	if registry != snippet.DefaultRegistry && !hosts.PlainHTTP && hosts.Certificates(names) {
		why += ", and ballastd asks it with the certificates in this directory"
	}
	var text strings.Builder
	if err := hosts.Write(&text); err != nil {
		return err
	}
	lost, err := b.lost(p, registry, have, hosts.Facade)
	if err != nil {
		return err
	}
	switch err := b.want(p, []byte(text.String()), 0o644, noGroup, why); {
	case lost == "":
		return err
	case err != nil:
		return fmt.Errorf("%s; %w", lost, err)
	case b.o.Force:
		b.note("%s", lost)
	}
	return nil
}

// lost says what a hosts.toml of others has of a registry that ballastd would not know when the file is replaced, and
// how it does; "" if there is no such thing.
func (b *builder) lost(p, registry, text, facade string) (string, error) {
	now, err := b.disk().digestAt(p)
	if err != nil || now == "" || b.ours(p, now) || strings.Contains(text, facade) {
		return "", err
	}
	to, said := filepath.Join(b.Config.Upstream.HostsDir, registry), snippet.Settings(text, registry)
	if len(said) == 0 || b.Exists(filepath.Join(to, "hosts.toml")) {
		return "", nil
	}
	carry := fmt.Sprintf("mkdir -p %s && cp -a %s/. %s/", to, filepath.Dir(p), to)
	if b.o.Force {
		carry += fmt.Sprintf(" && cp -a %s %s/hosts.toml", kept(p, now), to)
	}
	return fmt.Sprintf("%s says of %s what ballastd does not know (%s); to let ballastd use it: %s", p, registry, strings.Join(said, ", "), carry), nil
}

// local reports whether a registry is on this machine, where containerd uses plain HTTP.
func local(registry string) bool {
	name, _, err := net.SplitHostPort(registry)
	if err != nil {
		return false
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// list adds the changes of closedConfig. What is in it must be on the host at any time, also after a crash, so it is
// taken away before the step from, the first that replaces hosts.toml files, and written after the last; files are
// removed later. ballastd reads it again without a restart.
func (b *builder) list(closed []string, from int) error {
	text, err := b.closedText(closed)
	if err != nil {
		return err
	}
	if text == "" {
		delete(b.files, closedConfig)
		return nil
	}
	changed := len(b.plan.Steps)
	if err := b.want(closedConfig, []byte(text), 0o644, noGroup, "ballastd notices when others replace these files"); err != nil {
		return err
	}
	if changed > from && len(b.plan.Steps) > changed && b.Exists(closedConfig) {
		write := &b.plan.Steps[changed]
		gone := Step{Action: Remove, Target: closedConfig, Why: "its files change", found: write.found}
		write.found = ""
		b.plan.Steps = slices.Insert(b.plan.Steps, from, gone)
	}
	return nil
}

// closedText returns the text of closedConfig for the wanted files, or "" if there is no closed registry.
func (b *builder) closedText(closed []string) (string, error) {
	var files []map[string]string
	for _, p := range slices.Sorted(maps.Keys(b.files)) {
		wrote := b.files[p].last()
		if filepath.Base(p) == "hosts.toml" && wrote != "" && slices.Contains(closed, snippet.RegistryOf(filepath.Base(filepath.Dir(p)))) {
			files = append(files, map[string]string{"file": p, "digest": wrote.String()})
		}
	}
	if len(files) == 0 {
		return "", nil
	}
	text, err := toml.Marshal(map[string]any{"version": 1, "facade": map[string]any{"closed": files}})
	return "# Written by \"ballast setup\": the hosts.toml files of closed registries.\n" + string(text), err
}
