package upstream

import (
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
)

// Resolver returns how names are resolved, for who reaches registries by client.
func Resolver(c *config.Config, client *remote.Client, log *slog.Logger) resolve.Resolver {
	cartons := map[string]string{}
	for _, m := range c.Carton {
		cartons[m.Registry] = m.URL
	}
	return resolve.Resolver{
		Upstream: client, OllamaRunner: c.Upstream.OllamaRunner, Cartons: cartons,
		// The client decides what may be fetched.
		Carton: carton.Options{HTTP: client.Do, AllowHTTP: true, TempDir: filepath.Join(c.Root, CartonDir), Log: log},
	}
}

// CartonDir is the directory below the root for copies of archives from servers without ranges.
const CartonDir = "carton"

// Options returns the options of a registry client. version is ours, for the User-Agent.
func Options(c *config.Config, version string, log *slog.Logger) remote.Options {
	o := remote.Options{
		HostsDir:    c.Upstream.HostsDir,
		AllowHosts:  c.Upstream.AllowHosts,
		OllamaHosts: c.Upstream.OllamaHosts,
		UserAgent:   c.Upstream.UserAgent,
		Connections: 2 * c.Fetch.Connections,
		Stall:       c.Upstream.StallTimeout.Duration,
		Log:         log,
	}
	if o.UserAgent == "" {
		o.UserAgent = "ballast/" + version
	}
	for _, m := range c.Carton {
		o.NamedURLs = append(o.NamedURLs, m.URL)
	}
	if c.Upstream.DockerConfig != "" {
		o.Credentials = remote.DockerCredentials(c.Upstream.DockerConfig)
	}
	withHub(&o, log)
	o.Shared = func(host string) bool { return slices.Contains(c.Upstream.Share, host) }
	if c.Facade.Listen != "" {
		o.Facade = []string{c.Facade.Listen}
	}
	return o
}
