package upstream

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/credentialprovider"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
)

// Resolver returns the resolver of names for a registry client.
func Resolver(c *config.Config, client *remote.Client, log *slog.Logger) resolve.Resolver {
	return resolve.Resolver{
		Upstream: client, Variant: c.Upstream.OllamaRunner, Archives: c.Archives(), Titled: c.Upstream.MountsTitled, Prefix: c.PrefixOf,
		// The client decides what may be downloaded.
		Settings: format.Settings{HTTP: client.Do, Getenv: config.Getenv, TempDir: filepath.Join(c.Root, dirs.Archives), Log: log},
	}
}

// A Lookup returns the credentials of the node for a repository, or the zero value; see remote.Options.Credentials.
type Lookup func(host, repository string) (remote.Credentials, error)

// firstOf returns a Lookup that has the first credentials, or the first error, of others, which can be nil.
func firstOf(all ...Lookup) Lookup {
	return func(host, repository string) (remote.Credentials, error) {
		for _, look := range all {
			if look == nil {
				continue
			}
			if creds, err := look(host, repository); err != nil || creds != (remote.Credentials{}) {
				return creds, err
			}
		}
		return remote.Credentials{}, nil
	}
}

// Options returns the options of a registry client. agent is the User-Agent if the
// configuration has none, and providers are those of the configuration (Providers).
func Options(c *config.Config, agent string, providers Lookup, log *slog.Logger) remote.Options {
	o := remote.Options{
		HostsDir:    c.Upstream.HostsDir,
		CertsDirs:   func() []string { return CertsDirs(c.Facade.Closed) },
		AllowHosts:  c.Upstream.AllowHosts,
		UserAgent:   cmp.Or(c.Upstream.UserAgent, agent),
		Connections: 2 * c.Fetch.Connections,
		Stall:       c.Upstream.StallTimeout.Duration,
		Offline:     c.Upstream.IsOffline,
		MirrorOnly:  c.Upstream.IsMirrorOnly,
	}
	for _, m := range c.Mirror {
		o.Peers = append(o.Peers, m.Peers())
	}
	for _, m := range c.Carton {
		o.NamedURLs = append(o.NamedURLs, m.URL)
	}
	var stored Lookup
	if c.Upstream.DockerConfig != "" {
		stored = remote.DockerCredentials(c.Upstream.DockerConfig)
	}
	o.Credentials = firstOf(stored, providers, withHosts(&o, c, log))
	o.Shared = func(host string) bool {
		return slices.ContainsFunc(c.Upstream.Share, func(s string) bool { return hostname.Normal(s) == host })
	}
	if c.Facade.Listen != "" {
		o.Facade = []string{c.Facade.Listen}
	}
	return o
}

// Providers returns what credential provider plugins of the kubelet have; nil without plugins. It keeps their answers,
// so a process needs one.
func Providers(c *config.Config) Lookup {
	if c.Upstream.ProviderFile == "" {
		return nil
	}
	return credentialprovider.New(c.Upstream.ProviderFile, c.Upstream.ProviderDir).Credentials
}

// CertsDirs returns the directories in which containerd finds certificates: those of the hosts.toml files of closed
// registries, and the usual ones. A daemon in a pod has them only below the root of the first process of the node.
func CertsDirs(closed []config.HostsFile) (all []string) {
	dirs := []string{}
	for _, f := range closed {
		dirs = append(dirs, filepath.Dir(filepath.Dir(f.File)))
	}
	dirs = append(dirs, config.ContainerdHostsDir, config.DockerHostsDir)
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	for _, root := range []string{"/", "/proc/1/root"} {
		for _, dir := range dirs {
			all = append(all, filepath.Join(root, dir))
		}
	}
	return all
}

// withHosts configures a client for the hosts of formats, and returns their credentials.
func withHosts(o *remote.Options, c *config.Config, log *slog.Logger) Lookup {
	o.Manners, o.Dialects = map[string]remote.Manner{}, map[string]remote.Dialect{}
	own := map[string]func() remote.Credentials{}
	for _, f := range formats.All() {
		if f.Hosts == nil {
			continue
		}
		hosts, err := f.Hosts(format.Settings{Getenv: config.Getenv})
		if err != nil {
			log.Warn("the hosts of a format cannot be read", "err", err)
			continue
		}
		for _, name := range append(slices.Clone(hosts.Names), c.HostsLike(string(f.Name))...) {
			o.Manners[name], own[name] = hosts.Manner, hosts.Credentials
			if hosts.Dialect != nil {
				o.Dialects[name] = hosts.Dialect
			}
		}
	}
	return func(host, _ string) (creds remote.Credentials, _ error) {
		if give := own[host]; give != nil {
			creds = give()
		}
		return creds, nil
	}
}

// Rules reads the rules of [[verify.rule]] with their keys. Errors name the rule and the file.
func Rules(c *config.Config) ([]*signature.Rule, error) {
	var rules []*signature.Rule
	for i, r := range c.Verify.Rule {
		o := signature.RuleOptions{
			Name: r.Match, Matches: r.Matches, MayMatch: r.MayMatch, Mode: signature.Mode(r.Mode), DenyCode: r.DenyCode, Licenses: r.Licenses,
		}
		if r.Mode != config.VerifyOff {
			for _, s := range r.Any {
				o.Any = append(o.Any, signature.SignerOptions(s))
			}
		}
		rule, err := signature.NewRule(o)
		if err != nil {
			return nil, fmt.Errorf("configuration: verify.rule %d: %w", i+1, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}
