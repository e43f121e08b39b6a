package setup

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Options are the choices of a set-up. The zero value sets up the machine itself, for all pods.
type Options struct {
	// Host is the root of the host's file system in this process; empty is "/".
	Host string `json:"-"`

	// Distro is one of Distros; empty is Auto.
	Distro string `json:"distro,omitempty"`

	// Registries are those whose tags go through the facade: hosts, or "_default".
	Registries []string `json:"registries,omitempty"`

	// RuntimeHandler is the handler whose pods use ballast. Empty: all pods.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`

	// SnapshotterOnly sets nothing for Kubernetes: ctr and nerdctl say what they want.
	SnapshotterOnly bool `json:"snapshotterOnly,omitempty"`

	// NoService installs no unit: the daemon runs elsewhere, in a pod say.
	NoService bool `json:"noService,omitempty"`

	// BinDir is where the programs go on the host; empty is DefaultBinDir.
	BinDir string `json:"binDir,omitempty"`

	// Images are those that the node needs to get ballastd back, besides the sandbox image: that of the pod of
	// the daemon, and of what makes its network.
	Images []string `json:"images,omitempty"`

	// Settings are files of settings of ballastd by name, which go to /etc/ballast/conf.d. What the last set-up
	// has put there and is not among them has no effect any more.
	Settings map[string]string `json:"settings,omitempty"`

	// ContainerdVersion is that of the host's containerd, such as "2.3". Empty: it is asked.
	ContainerdVersion string `json:"containerdVersion,omitempty"`

	// NoRestart restarts neither containerd nor ballastd: what has to be is remembered and said.
	NoRestart bool `json:"-"`

	// Force replaces files of others, and goes on where something that the node needs would be closed.
	Force bool `json:"-"`
}

// DefaultBinDir is where the programs are on the host.
const DefaultBinDir = "/usr/local/bin"

// Where a set-up keeps what it has to know to go on after a crash, to go back, and to leave nothing. All of
// it is for root alone.
const (
	stateDir  = "/var/lib/ballast-setup"
	stateFile = stateDir + "/setup.json"
	originals = stateDir + "/originals" // files that were there before, by their path
	previous  = stateDir + "/previous"  // what the last upgrade replaced, by its path
)

// What a node has of ballast beside its configuration of containerd.
const (
	configDir   = "/etc/ballast"
	configFile  = configDir + "/config.toml"
	ownConfig   = configDir + "/conf.d/00-setup.toml"
	unitDir     = "/etc/systemd/system"
	serviceName = "ballastd.service"
	socketName  = "ballastd.socket"
)

// An Action is what a step does.
type Action string

// The values of Action.
const (
	Copy    Action = "copy"    // a program
	Write   Action = "write"   // a file
	Restore Action = "restore" // a file to what it was before
	Remove  Action = "remove"  // a file, or a directory that is empty then
	Purge   Action = "purge"   // a directory with all that is in it
	Images  Action = "images"  // remove the images that were unpacked into ballast
	Enable  Action = "enable"  // units
	Disable Action = "disable" // units, and stop them
	Start   Action = "start"   // the daemon, anew if it runs
	Wait    Action = "wait"    // until the daemon answers and has made its keys
	Restart Action = "restart" // containerd
	Unmount Action = "unmount" // what the daemon left mounted
	Chmod   Action = "chmod"   // take what strangers may do
)

// A Step is one change of a host.
type Step struct {
	Action Action `json:"action"`
	Target string `json:"target"` // a path of the host, or a unit
	Why    string `json:"why"`

	data  []byte // of Write
	mode  fs.FileMode
	from  string // of Copy: a path of this process
	keep  string // of Write: where what was there is kept
	group group
}

// A group is what has to be done when one of its files has changed.
type group int

const (
	noGroup         group = iota
	daemonGroup           // ballastd is started anew
	containerdGroup       // containerd is restarted
)

// A Plan is what is to be done with a host, in an order in which a crash at any point leaves a node that
// pulls ordinary images.
type Plan struct {
	Distro string `json:"distro"`
	Steps  []Step `json:"steps"`

	// Notes are for who runs this: what has to be done by hand, what to mind.
	Notes []string `json:"notes,omitempty"`

	// Pending are actions that are left to do after it: containerd or ballastd have to be restarted.
	Pending []string `json:"pending,omitempty"`

	host   host
	distro distro
	unit   string // of containerd
	socket string // admin socket of the daemon, a path of the host
	keys   []string
	next   record // what is recorded while and after it runs
	done   record
}

// The values of Plan.Pending and of the record's.
const (
	pendingDaemon     = "ballastd"
	pendingContainerd = "containerd"
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
}

// sorted returns the different names of a list.
func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(s string) bool { return strings.TrimSpace(s) == "" })
}
