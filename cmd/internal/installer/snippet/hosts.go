package snippet

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// DefaultRegistry is the name of the directory for all registries without their own directory.
const DefaultRegistry = "_default"

// FacadeNames returns the addresses of a facade that listens at an address.
func FacadeNames(listen string) []string {
	_, port, _ := net.SplitHostPort(listen)
	return []string{listen, "127.0.0.1:" + port, "localhost:" + port, "[::1]:" + port}
}

// Hosts are the parameters of a hosts.toml.
type Hosts struct {
	Registry string // such as "ghcr.io", or DefaultRegistry
	Facade   string // "host:port" of the facade

	// CA and Client are the files with which containerd authenticates the facade and itself.
	// Without both, the facade is accessed by plain HTTP.
	CA, Client string

	// PlainHTTP means that the registry itself uses HTTP.
	PlainHTTP bool

	// ServerKeys are the lines with the certificates for the registry itself; see Certificates.
	ServerKeys string

	// Open allows tags to be resolved without the facade. Only for DefaultRegistry.
	Open bool
}

// Write writes the hosts.toml. Tags of a single registry resolve only through the facade. It
// returns errdefs.ErrInvalidArgument for a registry that is not a host name with an optional port,
// and for file names that cannot be written.
func (h Hosts) Write(w io.Writer) error {
	if (h.CA == "") != (h.Client == "") {
		return fmt.Errorf("the CA and the key of the client belong together: %w", errdefs.ErrInvalidArgument)
	}
	for _, p := range []string{h.CA, h.Client} {
		if p == "" {
			continue
		}
		if err := checkPath(p); err != nil {
			return err
		}
	}
	if h.Registry == DefaultRegistry {
		if h.Open {
			return defaultOpen.Execute(w, h)
		}
		return defaultClosed.Execute(w, h)
	}
	if h.Open {
		return fmt.Errorf("only %s can be open: %w", DefaultRegistry, errdefs.ErrInvalidArgument)
	}
	if err := CheckRegistry(h.Registry); err != nil {
		return err
	}
	return registryTemplate.Execute(w, h)
}

// Certificates has the registry itself asked with the certificates that containerd used before: those among the names
// in the directory of the hosts.toml. It reports whether there are any.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/hosts.md
func (h *Hosts) Certificates(names []string) bool {
	var cas, clients []string
	for _, name := range names {
		pair, certificate := strings.CutSuffix(name, ".cert")
		switch {
		case !plainRE.MatchString(name):
		case strings.HasSuffix(name, ".crt"):
			cas = append(cas, strconv.Quote(name))
		case certificate && slices.Contains(names, pair+".key"):
			clients = append(clients, fmt.Sprintf("[%q, %q]", name, pair+".key"))
		case certificate:
			clients = append(clients, strconv.Quote(name))
		}
	}
	h.ServerKeys = ""
	if len(cas) > 0 {
		h.ServerKeys += "ca = [" + strings.Join(cas, ", ") + "]\n"
	}
	if len(clients) > 0 {
		h.ServerKeys += "client = [" + strings.Join(clients, ", ") + "]\n"
	}
	return h.ServerKeys != ""
}

// Dir returns the directory of the hosts.toml of a registry: for "host:5000", containerd looks for "host_5000_" first.
func Dir(hostsDir, registry string, isDir func(string) bool) string {
	if i := strings.LastIndexByte(registry, ':'); i > 0 {
		if dir := filepath.Join(hostsDir, registry[:i]+"_"+registry[i+1:]+"_"); isDir(dir) {
			return dir
		}
	}
	return filepath.Join(hostsDir, registry)
}

// Settings returns what a hosts.toml says of a registry besides its address: the names of keys, and mirrors. Values can
// be secret.
func Settings(text, registry string) []string {
	var file map[string]any
	if toml.Unmarshal([]byte(text), &file) != nil {
		return nil // containerd does not use it
	}
	hosts, _ := file["host"].(map[string]any)
	delete(file, "host")
	if server, _ := file["server"].(string); server == (Hosts{Registry: registry}).Server() {
		delete(file, "server")
	}
	all := slices.Collect(maps.Keys(file))
	for name, v := range hosts {
		if u, err := url.Parse(name); err == nil {
			all = append(all, "mirror "+u.Host)
		}
		table, _ := v.(map[string]any)
		all = slices.AppendSeq(all, maps.Keys(table))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// FacadeURL returns the URL of the facade.
func (h Hosts) FacadeURL() string {
	if h.CA == "" {
		return "http://" + h.Facade
	}
	return "https://" + h.Facade
}

// HasPlainHTTP reports whether a hosts.toml of Write says that the registry itself uses plain HTTP.
func HasPlainHTTP(text, registry string) bool {
	return strings.Contains(text, "\nserver = \"http://"+registry+"\"\n")
}

// CheckRegistry returns errdefs.ErrInvalidArgument for a name that is neither DefaultRegistry nor a host name with an
// optional port, as references have it.
func CheckRegistry(name string) error {
	var advice string
	switch {
	case name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\\\"@ \t\n"):
		advice = "write a host name, with a port if need be"
	case name == "hub.docker.com":
		advice = "write docker.io"
	case name != strings.ToLower(name):
		advice = "write it in lower case, as references do"
	case name != DefaultRegistry && name != "localhost" && !strings.ContainsAny(name, ".:"):
		advice = "the host of a reference has a dot or a port, such as registry.ollama.ai"
	default:
		return nil
	}
	return fmt.Errorf("%.300q is not a registry: %s: %w", name, advice, errdefs.ErrInvalidArgument)
}

// Server returns the URL of the registry itself.
func (h Hosts) Server() string {
	switch {
	case h.Registry == "docker.io":
		return "https://registry-1.docker.io"
	case h.PlainHTTP:
		return "http://" + h.Registry
	}
	return "https://" + h.Registry
}

// keys is the comment above the files of the keys.
const keys = `  # The keys that ballastd has made, for root only. Without them nobody can ask the facade, and nobody
  # can answer in its place, whoever has bound its port. containerd reads them for each pull.`

// hostTable is the table of the facade beside a registry that can be asked itself.
const hostTable = `[host."{{.FacadeURL}}"]
  capabilities = ["pull", "resolve"]
{{- if .CA}}
` + keys + `
  ca = "{{.CA}}"
  client = "{{.Client}}"
  header = {` + registry.HeaderNext + ` = "registry"}
{{- end}}
`

var registryTemplate = template.Must(template.New("registry").Parse(
	`# {{.Registry}} through ballast. Written by "ballast config hosts {{.Registry}}".
#
# Tags are resolved by the facade of ballastd only, so that a model always arrives converted.
# While ballastd is stopped, pulls by tag from this registry fail; they never give an
# unconverted manifest, which containerd would show as an empty directory. Layers come from
# the registry itself{{if .CA}}: the facade is told that it can be asked, and leaves them to it{{end}}.
server = "{{.Server}}"
# Belongs to server: everything but "resolve".
capabilities = ["pull", "push"]
{{.ServerKeys}}
` + hostTable))

var defaultClosed = template.Must(template.New("closed").Parse(
	`# Every registry that has no directory of its own, through ballast. Written by
# "ballast config hosts _default".
#
# This is the closed form: containerd asks the facade of ballastd for everything and nobody
# else. Models of every registry arrive converted; while ballastd is stopped, nothing can be
# pulled from these registries, ordinary images included, and nothing can be pushed to them.
# The open form, "ballast config hosts _default --open", keeps ordinary images coming while
# ballastd is stopped, but a model that is pulled then is an empty directory.
#
# containerd knows no way between the two for _default: without "server" a host that is not
# named may do everything, and "capabilities" does not change that. For registries that are
# known to hold models, a directory each ("ballast config hosts REGISTRY") is better than both.
server = "{{.FacadeURL}}"
capabilities = ["pull", "resolve"]
{{- if .CA}}
` + strings.ReplaceAll(keys, "  #", "#") + `
ca = "{{.CA}}"
client = "{{.Client}}"
{{- end}}
`))

var defaultOpen = template.Must(template.New("open").Parse(
	`# Every registry that has no directory of its own, through ballast. Written by
# "ballast config hosts _default --open".
#
# This is the open form: containerd asks the facade of ballastd first and the registry if the
# facade does not answer. Ordinary images can be pulled while ballastd is stopped. A MODEL THAT
# IS PULLED THEN ARRIVES UNCONVERTED: as an image volume it is refused by the snapshotter of
# ballast, and an empty directory with any other. "ballast doctor" warns of this file.
# The closed form is what "ballast config hosts _default" prints.
` + hostTable))

// RegistryOf returns the registry of a directory of hosts.toml: "host_5000_" is "host:5000".
func RegistryOf(dir string) string {
	if rest, ok := strings.CutSuffix(dir, "_"); ok {
		if i := strings.LastIndexByte(rest, '_'); i > 0 {
			return rest[:i] + ":" + rest[i+1:]
		}
	}
	return dir
}
