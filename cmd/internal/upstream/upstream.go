// Package upstream says how registries are reached and which formats are understood: the same
// for the daemon and for the parts of the command line that work without it.
package upstream

import (
	"log/slog"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/dockerai"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/modelpack"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/remote"
)

// Parsers returns the formats that are understood. Any other is refused by name.
func Parsers() convert.Parsers {
	return convert.Parsers{
		mediatype.FormatModelPack: modelpack.Parse,
		mediatype.FormatCNAI:      modelpack.Parse,
		mediatype.FormatCNAIEarly: modelpack.ParseEarly,
		mediatype.FormatDockerAI:  dockerai.Parse,
		mediatype.FormatOllama:    ollama.Parse,
	}
}

// Options returns the options of a registry client. version is ours, for the User-Agent.
func Options(c *config.Config, version string, log *slog.Logger) remote.Options {
	o := remote.Options{
		HostsDir:    c.Upstream.HostsDir,
		AllowHosts:  c.Upstream.AllowHosts,
		OllamaHosts: c.Upstream.OllamaHosts,
		UserAgent:   c.Upstream.UserAgent,
		Connections: 2 * c.Fetch.Connections,
		Stall:       time.Duration(c.Upstream.StallTimeout),
		Log:         log,
	}
	if o.UserAgent == "" {
		o.UserAgent = "ballast/" + version
	}
	if c.Upstream.DockerConfig != "" {
		o.Credentials = remote.DockerCredentials(c.Upstream.DockerConfig)
	}
	if c.Facade.Listen != "" {
		o.Facade = []string{c.Facade.Listen}
	}
	return o
}
