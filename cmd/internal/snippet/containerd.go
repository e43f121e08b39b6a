package snippet

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"github.com/containerd/errdefs"
)

// The names of our plugins in containerd.
const (
	Snapshotter = "ballast"
	Differ      = "ballast-diff"
)

// Containerd are the choices of the drop-in for containerd. Paths are absolute.
type Containerd struct {
	Address  string // our gRPC socket
	Root     string // our root
	Platform string // of this node, such as "linux/amd64"
	HostsDir string // where hosts.toml files are

	// RuntimeHandler is the handler (runtimeClass) whose pods use ballast. Empty: all pods.
	RuntimeHandler string

	// SystemdCgroup is what the runc options of the handler say.
	SystemdCgroup bool

	// NoCRI leaves out what is for Kubernetes only.
	NoCRI bool
}

var handlerRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// Write writes the drop-in, a file in containerd's format version 4. It returns
// errdefs.ErrInvalidArgument if a choice can not be written.
func (c Containerd) Write(w io.Writer) error {
	for _, p := range []string{c.Address, c.Root, c.HostsDir} {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	if c.RuntimeHandler != "" && !handlerRE.MatchString(c.RuntimeHandler) {
		return fmt.Errorf("%q is not the name of a runtime handler: %w", c.RuntimeHandler, errdefs.ErrInvalidArgument)
	}
	return containerdTemplate.Execute(w, c)
}

// checkPath returns errdefs.ErrInvalidArgument for a path that can not stand between quotes.
func checkPath(p string) error {
	if !filepath.IsAbs(p) || strings.ContainsAny(p, "\"\\\n") {
		return fmt.Errorf("%q is not an absolute path without quotes and backslashes: %w", p, errdefs.ErrInvalidArgument)
	}
	return nil
}

var containerdTemplate = template.Must(template.New("containerd").Parse(
	`# ballast as snapshotter and differ of containerd 2.4. Written by "ballast config containerd".
#
# Put this into /etc/containerd/conf.d/ballast.toml. containerd reads it only if
# /etc/containerd/config.toml has, before its first table,
#     imports = ["/etc/containerd/conf.d/*.toml"]
# Then restart containerd, and run "ballast doctor".
#
# If your configuration has unpack_config entries or a diff-service order of its own, write all
# of them in one file: the list of one file replaces that of another.
version = 4

[proxy_plugins.ballast]
  type = "snapshot"
  address = "{{.Address}}"
  platform = "{{.Platform}}"
  [proxy_plugins.ballast.exports]
    # The kubelet measures disk use here; it must be the root of ballastd.
    root = "{{.Root}}"
    # Pulls say which image a layer is of. A string, not a boolean.
    enable_remote_snapshot_annotations = "true"

[proxy_plugins.ballast-diff]
  type = "diff"
  address = "{{.Address}}"
  platform = "{{.Platform}}"

# Unpacking by clients: "ctr images pull --local", and every image volume of a pod.
[plugins."io.containerd.service.v1.diff-service"]
  default = ["ballast-diff", "walking"]

# Unpacking by pulls. Without "differ", containerd takes "walking".
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "{{.Platform}}"
  snapshotter = "overlayfs"
  differ = "walking"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "{{.Platform}}"
  snapshotter = "ballast"
  differ = "ballast-diff"
{{if not .NoCRI}}
# Kubernetes. Leave disable_snapshot_annotations alone: false turns the settings above off.
[plugins."io.containerd.cri.v1.images"]
{{- if not .RuntimeHandler}}
  snapshotter = "ballast"
{{- end}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{{.HostsDir}}"
{{- with .RuntimeHandler}}

# Pods with a runtimeClass of handler {{.}} use ballast, for images and for image volumes.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes."{{.}}"]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "ballast"
{{- if $.SystemdCgroup}}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes."{{.}}".options]
    SystemdCgroup = true
{{- end}}
{{- end}}
{{end}}`))
