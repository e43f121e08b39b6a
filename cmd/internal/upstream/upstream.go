package upstream

import (
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/dockerai"
	"github.com/ballast-dev/ballast/convert/kitops"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/modelpack"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/titled"
)

// Parsers returns the formats that are understood. Any other is refused by name. Cartons with
// files that are elsewhere need ParsersWith.
func Parsers() convert.Parsers { return ParsersFor(carton.Options{}, "") }

// ParsersWith is Parsers with the settings of c, where client gets what is not in a registry.
func ParsersWith(c *config.Config, client *remote.Client, log *slog.Logger) convert.Parsers {
	return ParsersFor(CartonOptions(c, client, log), c.Upstream.OllamaRunner)
}

// ParsersFor is Parsers for who reads cartons in a way of his own, or wants the model for a certain
// runner of Ollama lists.
func ParsersFor(o carton.Options, runner string) convert.Parsers {
	return convert.Parsers{
		mediatype.FormatModelPack: modelpack.Parse,
		mediatype.FormatCNAI:      modelpack.Parse,
		mediatype.FormatCNAIEarly: modelpack.ParseEarly,
		mediatype.FormatDockerAI:  dockerai.Parse,
		mediatype.FormatOllama:    ollama.Parse,
		mediatype.FormatKitOps:    kitops.Parse,

		mediatype.FormatOllamaList: ollama.ListParser(runner),
		mediatype.FormatCarton:     carton.Parser(o),
		mediatype.FormatTitled:     titled.Parse,
	}
}

// CartonOptions returns how cartons are read. The client decides what may be fetched.
func CartonOptions(c *config.Config, client *remote.Client, log *slog.Logger) carton.Options {
	return carton.Options{HTTP: client.Do, AllowHTTP: true, TempDir: filepath.Join(c.Root, CartonDir), Log: log}
}

// CartonDir is the directory below the root for copies of archives from servers without ranges.
const CartonDir = "carton"

// Cartons returns the URLs of the hosts that stand for cartons, by host; see registry.Handler.
func Cartons(c *config.Config) map[string]string {
	all := map[string]string{}
	for _, m := range c.Carton {
		all[m.Registry] = m.URL
	}
	return all
}

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
		o.Shared = func(host string) bool { return slices.Contains(c.Upstream.Share, host) }
	}
	if c.Facade.Listen != "" {
		o.Facade = []string{c.Facade.Listen}
	}
	return o
}
