package snippet

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// The names of our plugins in containerd.
const (
	Snapshotter = "ballast"
	Differ      = "ballast-diff"
)

// Containerd are the parameters of the drop-in for containerd. Paths are absolute.
type Containerd struct {
	Address  string // our gRPC socket
	Root     string // our root
	Platform string // of this node, such as "linux/amd64"
	HostsDir string // the directory of hosts.toml files

	// Version is the version of containerd. If it is zero, the version is unknown, and the drop-in
	// has nothing that some version does not support.
	Version containerdversion.Version

	// Main is the file that imports the drop-in; zero if there is none.
	Main containerdversion.File

	// Unpack are the node's own entries of unpack_config, and Differs those of its diff-service: a
	// list of the drop-in replaces that of the main file. If there is no entry for overlayfs, one
	// is added.
	Unpack  []Unpack
	Differs []string

	// RuntimeHandler is the handler (runtimeClass) whose pods use ballast. Empty means all pods.
	RuntimeHandler string

	// Handler is the table of the runtime handler that RuntimeHandler is like, in the form of format 3: its
	// runtime and options, to which the snapshotter is added. Nil is runc without options.
	Handler map[string]any

	// NoCRI leaves out the parts for Kubernetes.
	NoCRI bool

	capabilities []string // of the snapshotter; set by Write
}

// Capabilities returns the capabilities of the snapshotter with this version, as a TOML list, or
// "".
func (c Containerd) Capabilities() string {
	if len(c.capabilities) == 0 {
		return ""
	}
	return fmt.Sprintf(`["%s"]`, strings.Join(c.capabilities, `", "`))
}

// LayerTypes returns the types of layers that containerd must not download, for versions that have
// this setting and image volumes.
func (c Containerd) LayerTypes() []string {
	if !c.Version.ImageVolumes() {
		return nil
	}
	return mediatype.OwnLayers()
}

// Unpack assigns a differ to a snapshotter.
type Unpack struct{ Platform, Snapshotter, Differ string }

// Own reports whether the node has an entry for a snapshotter.
func (c Containerd) Own(snapshotter string) bool {
	return slices.ContainsFunc(c.Unpack, func(u Unpack) bool { return u.Snapshotter == snapshotter })
}

// plainRE matches a name that needs no escaping between quotes.
var plainRE = regexp.MustCompile(`^[-\w./]*$`)

// checkOwn checks the entries of the node.
func (c Containerd) checkOwn() error {
	names := slices.Clone(c.Differs)
	for _, u := range c.Unpack {
		names = append(names, u.Platform, u.Snapshotter, u.Differ)
	}
	for _, n := range names {
		if !plainRE.MatchString(n) {
			return fmt.Errorf("%q is not the name of a plugin: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

var handlerRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// Write writes the drop-in in the format that the version of containerd reads. For 1.7, the part
// for Kubernetes is a comment: in a drop-in it would replace the rest of CRI's table. It returns
// errdefs.ErrInvalidArgument for a parameter that cannot be written, and for versions that ballast
// does not support.
func (c Containerd) Write(w io.Writer) error {
	for _, p := range []string{c.Address, c.Root, c.HostsDir} {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	if c.RuntimeHandler != "" && !handlerRE.MatchString(c.RuntimeHandler) {
		return fmt.Errorf("%q is not the name of a runtime handler: %w", c.RuntimeHandler, errdefs.ErrInvalidArgument)
	}
	if err := c.checkOwn(); err != nil {
		return err
	}
	rebase := c.Version.StagesLayers()
	if c.Version == (containerdversion.Version{}) {
		c.Version = containerdversion.Newest
	}
	if c.Version.MapsUsers() {
		c.capabilities = append(c.capabilities, "remap-ids")
	}
	if rebase {
		c.capabilities = append(c.capabilities, "rebase")
	}
	if c.Version.Before(containerdversion.Oldest) {
		return fmt.Errorf("containerd %s is too old for ballast, which needs %s: %w", c.Version, containerdversion.Oldest, errdefs.ErrInvalidArgument)
	}
	kubernetes := kubernetesTemplate
	if c.form().OldTables {
		kubernetes = kubernetesTemplate2
		if c.RuntimeHandler != "" && c.Version.RuntimePlatforms() {
			return fmt.Errorf("containerd %s cannot be told the snapshotter of a handler in a configuration with the tables of version 2; run \"containerd config migrate\": %w", c.Version, errdefs.ErrInvalidArgument)
		}
	}
	if err := containerdTemplate.Execute(w, c); err != nil || c.NoCRI {
		return err
	}
	var b strings.Builder
	if err := kubernetes.Execute(&b, c); err != nil {
		return err
	}
	text := b.String()
	if c.Version.ReplacesTables() {
		text = mergeByHand + "#     " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n#     ") + "\n"
	}
	_, err := io.WriteString(w, "\n"+text)
	return err
}

// HandlerTable returns the settings of the handler, in the table of a plugin of CRI.
func (c Containerd) HandlerTable(plugin string) (string, error) {
	table := maps.Clone(c.Handler)
	if table == nil {
		table = map[string]any{"runtime_type": "io.containerd.runc.v2"}
	}
	table["snapshotter"] = Snapshotter
	var out strings.Builder
	err := writeTable(&out, fmt.Sprintf("plugins.%q.containerd.runtimes.%q", plugin, c.RuntimeHandler), table, 1)
	return strings.TrimRight(out.String(), "\n"), err
}

// writeTable writes the settings of a table, whose header is written, and the tables in it.
func writeTable(out *strings.Builder, name string, table map[string]any, depth int) error {
	var tables []string
	for _, k := range slices.Sorted(maps.Keys(table)) {
		if _, ok := table[k].(map[string]any); ok {
			tables = append(tables, k)
			continue
		}
		line, err := toml.Marshal(map[string]any{k: table[k]})
		if err != nil {
			return fmt.Errorf("the setting %s of %s: %w", k, name, err)
		}
		if line[0] == '[' { // a list of tables
			return fmt.Errorf("the setting %s of %s cannot be repeated in a drop-in: %w", k, name, errdefs.ErrInvalidArgument)
		}
		out.WriteString(strings.Repeat("  ", depth) + string(line))
	}
	for _, k := range tables {
		sub := name + "." + strconv.Quote(k)
		fmt.Fprintf(out, "%s[%s]\n", strings.Repeat("  ", depth), sub)
		if err := writeTable(out, sub, table[k].(map[string]any), depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c Containerd) form() containerdversion.File { return c.Version.DropIn(c.Main) }

// Format returns the format of the drop-in, as in "version = 3".
func (c Containerd) Format() int { return c.form().Format }

// checkPath returns errdefs.ErrInvalidArgument for a path that needs escaping between quotes.
func checkPath(p string) error {
	if !filepath.IsAbs(p) || strings.ContainsAny(p, "\"\\\n") {
		return fmt.Errorf("%q is not an absolute path without quotes and backslashes: %w", p, errdefs.ErrInvalidArgument)
	}
	return nil
}

var containerdTemplate = template.Must(template.New("containerd").Parse(
	`# ballast as snapshotter and differ of containerd {{.Version}}. Written by "ballast config containerd".
#
# Put this into /etc/containerd/conf.d/ballast.toml. containerd reads it only if
# /etc/containerd/config.toml has, before its first table,
#     imports = ["/etc/containerd/conf.d/*.toml"]
# Then restart containerd, and run "ballast doctor".
#
# If your configuration has unpack_config entries or a diff-service order of its own, write all
# of them in one file: the list of one file replaces that of another.
{{- if not .Version.ImageVolumes}}
#
# This version has no image volumes: models can only be the root of a container.
{{- end}}
version = {{.Format}}

[proxy_plugins.ballast]
  type = "snapshot"
  address = "{{.Address}}"
  platform = "{{.Platform}}"
{{- with .Capabilities}}
  # remap-ids: pods in user namespaces see files as their own, without a copy. rebase: layers are unpacked in
  # parallel, where max_concurrent_unpacks of the transfer service says so.
  capabilities = {{.}}
{{- end}}
  [proxy_plugins.ballast.exports]
    # The kubelet measures disk use here; it must be the root of ballastd.
    root = "{{.Root}}"
    # Pulls say which image a layer is of. A string, not a boolean.
    enable_remote_snapshot_annotations = "true"

[proxy_plugins.ballast-diff]
  type = "diff"
  address = "{{.Address}}"
  platform = "{{.Platform}}"

# Unpacking by clients, by pulls of CRI in local mode, and for every image volume of a pod.
[plugins."io.containerd.service.v1.diff-service"]
  default = ["ballast-diff", {{range .Differs}}"{{.}}", {{end}}"walking"]

# Unpacking by pulls of the transfer service. Without "differ", containerd takes "walking".
{{- if not (.Own "overlayfs")}}
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "{{.Platform}}"
  snapshotter = "overlayfs"
  differ = "walking"
{{- end}}
{{- range .Unpack}}
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
{{- with .Platform}}
  platform = "{{.}}"
{{- end}}
  snapshotter = "{{.Snapshotter}}"
{{- with .Differ}}
  differ = "{{.}}"
{{- end}}
{{- end}}
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "{{.Platform}}"
  snapshotter = "ballast"
  differ = "ballast-diff"
{{- with .LayerTypes}}
  # Of models that are pulled by the digest of their registry, containerd fetches none of these layers, and ballast
  # shows them in pods.
  layer_types = [
{{- range .}}
    "{{.}}",
{{- end}}
  ]
{{- end}}
`))

// kubernetesTemplate has the settings for CRI, in the tables of format 3.
var kubernetesTemplate = template.Must(template.New("kubernetes").Parse(
	`# Kubernetes.
[plugins."io.containerd.cri.v1.images"]
{{- if not .RuntimeHandler}}
  snapshotter = "ballast"
{{- end}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{{.HostsDir}}"
{{- with .RuntimeHandler}}

# Pods with a runtimeClass of handler {{.}} use ballast, for images and for image volumes.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes."{{.}}"]
{{$.HandlerTable "io.containerd.cri.v1.runtime"}}
{{- if $.Version.RuntimePlatforms}}
# And for pulls:
[plugins."io.containerd.cri.v1.images".runtime_platforms."{{.}}"]
  platform = "{{$.Platform}}"
  snapshotter = "ballast"
{{- end}}
{{- end}}
`))

// kubernetesTemplate2 has the same in the tables of format 2.
var kubernetesTemplate2 = template.Must(template.New("kubernetes2").Parse(
	`{{if not .RuntimeHandler}}[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "ballast"
{{end -}}
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{{.HostsDir}}"
{{- with .RuntimeHandler}}
# Pods with a runtimeClass of handler {{.}} use ballast.
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."{{.}}"]
{{$.HandlerTable "io.containerd.grpc.v1.cri"}}
{{- end}}
`))

// mergeByHand is the comment above the part that cannot be in a drop-in.
const mergeByHand = `# Kubernetes. This version takes a table of a drop-in for the whole table of the plugin, so these lines
# cannot be here: everything else that CRI is told would be lost. Write them into the tables of
# /etc/containerd/config.toml, which has "version = 2":
#
`
