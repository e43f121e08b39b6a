package setup

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/contrib/systemd"
	"github.com/opencontainers/go-digest"
)

// Options are the choices of a set-up. The zero value sets up this machine, for all pods.
type Options struct {
	// Host is the root of the host's file system in this process; empty is "/".
	Host string `json:"-"`

	// Distro is one of Distros; empty is Auto.
	Distro string `json:"distro,omitempty"`

	// Registries are the registries whose tags go through the facade: hosts, or "_default".
	Registries []string `json:"registries,omitempty"`

	// RuntimeHandler is the handler whose pods use ballast. Empty means all pods.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`

	// Like are the handlers whose runtime and options RuntimeHandler gets: the first that the node has. Empty, and
	// node.DefaultHandler in it, are the default handler of the node.
	Like []string `json:"like,omitempty"`

	// SnapshotterOnly leaves out the settings for Kubernetes: ctr and nerdctl select the
	// snapshotter themselves.
	SnapshotterOnly bool `json:"snapshotterOnly,omitempty"`

	// Docker makes ballast the storage driver of Docker Engine, for all its images and containers.
	Docker bool `json:"docker,omitempty"`

	// NoService installs no unit: the daemon runs elsewhere, for example in a pod.
	NoService bool `json:"noService,omitempty"`

	// BinDir is the directory of the programs on the host; empty is DefaultBinDir.
	BinDir string `json:"binDir,omitempty"`

	// Packaged means that the programs in BinDir, and units, belong to a package; see Place.
	Packaged bool `json:"packaged,omitempty"`

	// Images are the images that the node needs to start ballastd again, besides the sandbox image:
	// that of the daemon's pod, and those of its network.
	Images []string `json:"images,omitempty"`

	// Settings are settings files of ballastd by name, for /etc/ballast/conf.d. Files of the last
	// set-up that are not among them have no effect any more.
	Settings map[string]string `json:"settings,omitempty"`

	// Env are the names of variables that ballastd gets as its environment, and Values have all of them. Without
	// Values, ballastd keeps those of the last set-up.
	Env    []string          `json:"env,omitempty"`
	Values map[string]string `json:"-"`

	// ContainerdVersion is the version of the host's containerd, such as "2.3". If it is empty,
	// containerd is asked.
	ContainerdVersion string `json:"containerdVersion,omitempty"`

	// NoRestart restarts neither containerd nor ballastd: required restarts are recorded and
	// reported.
	NoRestart bool `json:"-"`

	// WithDaemon means that a ballastd runs for a removal alone, which another removal completes when it has ended.
	WithDaemon bool `json:"-"`

	// Force replaces files and settings of others, which are kept, and continues if a registry that the
	// node needs would be closed, or while containers use ballast.
	Force bool `json:"-"`
}

// DefaultBinDir is the default directory of the programs on the host.
const DefaultBinDir = "/usr/local/bin"

// Where a set-up keeps what it needs to continue after a crash, to undo a run that fails, and to remove
// everything. Only root can read it.
const (
	stateDir  = "/var/lib/ballast-setup"
	stateFile = node.RecordFile
	keptDir   = stateDir + "/kept" // versions of files, by path and digest
)

// The files of ballast on a node besides its configuration of containerd.
const (
	configDir   = "/etc/ballast"
	configFile  = configDir + "/config.toml"
	ownConfig   = configDir + "/conf.d/00-setup.toml"
	unitDir     = "/etc/systemd/system"
	serviceName = systemd.Service
	socketName  = systemd.Socket
	holderName  = systemd.Holder
)

// An Action is what a step does.
type Action string

// The values of Action.
const (
	Copy    Action = "copy"    // a program
	Write   Action = "write"   // a file
	Restore Action = "restore" // a file to what it was before
	Remove  Action = "remove"  // a file
	Purge   Action = "purge"   // a directory of ballast with everything that ballast made in it
	Images  Action = "images"  // images of models, and all snapshots of ballast
	Enable  Action = "enable"  // units
	Disable Action = "disable" // units, and stop them
	Start   Action = "start"   // or restart the daemon
	Wait    Action = "wait"    // until the daemon answers and has created its keys
	Restart Action = "restart" // containerd or Docker
	Unmount Action = "unmount" // the mount left by the daemon
	Chmod   Action = "chmod"   // remove permissions of other users
	Undo    Action = "undo"    // a run that failed
)

// A Step is one change of a host.
type Step struct {
	Action Action `json:"action"`
	Target string `json:"target"` // a path on the host, or a unit
	Why    string `json:"why"`

	digest digest.Digest // of the content that the step gives a file
	found  digest.Digest // of the content that the file had when the plan was made
	data   []byte        // of Write and Restore; a Restore without is of a kept version
	mode   fs.FileMode
	from   string // of Copy: a path in this process
	group  group
}

// A group is the service that must be restarted when one of its files has changed.
type group int

const (
	noGroup         group = iota
	daemonGroup           // ballastd is restarted
	containerdGroup       // containerd is restarted
	dockerGroup           // Docker is restarted
	groups                // how many there are
)

// A Plan is a list of steps for a host, in an order in which a crash at any point leaves a node
// that pulls ordinary images.
type Plan struct {
	Distro string `json:"distro"`
	Steps  []Step `json:"steps"`

	// Notes are messages for the operator: manual steps and warnings.
	Notes []string `json:"notes,omitempty"`

	// Manifest is the addition to the machine configuration of a system that cannot be changed from
	// inside, in YAML.
	Manifest string `json:"manifest,omitempty"`

	// Pending are actions that are left to do after the plan: the restart of containerd, Docker or
	// ballastd.
	Pending []string `json:"pending,omitempty"`

	view *view
	next record // the record written before and after the steps
	done record
}

// The values of Plan.Pending and of the record's Pending.
const (
	pendingDaemon     = "ballastd"
	pendingContainerd = "containerd"
	pendingDocker     = "docker"
)

func (o *Options) complete() {
	if o.Host == "" {
		o.Host = "/"
	}
	o.Host = filepath.Clean(o.Host)
	if o.BinDir == "" {
		o.BinDir = DefaultBinDir
	}
	o.Registries = sorted(o.Registries)
	o.Images = sorted(o.Images)
	o.Env = sorted(o.Env)
}

// sorted returns the names of a list, sorted and without duplicates.
func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(s string) bool { return strings.TrimSpace(s) == "" })
}
