package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/containerd/errdefs"
)

// Options are what is known of a node before anybody looks at it. The zero value is this machine.
type Options struct {
	Root    string         // of its file system in this process; empty is "/"
	Distro  string         // one of Distros; empty is Auto
	Config  *config.Config // of ballast on the node; nil is the default
	Main    string         // containerd's main file; empty is the one that the running containerd reads
	Version string         // of containerd, such as "2.3"; empty is that of the running one
	Earlier string         // a version seen earlier, for a containerd that does not run
}

// A View is a node at one moment.
type View struct {
	Host
	Distro  Distro
	Config  *config.Config // of ballast
	Systemd bool           // it is the init system
	Unit    string         // of containerd, such as "containerd" or "k3s"

	// State is what the running containerd says, nil if it does not answer: then Silent is why.
	State  *ctrd.State
	Silent error

	// Version is the release of containerd, or the newest tested one, in which case Unknown is why.
	Version containerdversion.Version
	Unknown error

	// Containerd is the effective configuration of containerd.
	Containerd *Containerd
}

// Look returns the view of a node. A containerd that does not run is no error; a configuration of
// containerd that cannot be read is errdefs.ErrFailedPrecondition.
func Look(ctx context.Context, o Options) (*View, error) {
	v := &View{Host: Host{Root: filepath.Clean("/" + o.Root)}, Config: o.Config}
	if v.Config == nil {
		v.Config = config.Default()
	}
	var err error
	if v.Distro, err = v.Host.distro(o.Distro); err != nil {
		return nil, err
	}
	if a := v.Config.Containerd.Address; a != config.Default().Containerd.Address {
		v.Distro.Socket = a // set by the operator, or written by setup
	}
	v.Systemd = v.IsDir("/run/systemd/system")
	v.Unit = v.Distro.service(v.Host)
	v.State, v.Silent = v.ask(ctx)
	if v.Silent == nil && v.Root == "/" {
		v.process()
	}
	if o.Main != "" {
		v.Distro.Config = o.Main
	}
	if err := v.version(ctx, o); err != nil {
		return nil, err
	}
	v.Containerd, err = v.Load(ctx, v.Distro.Config, v.Version, nil)
	return v, err
}

// Dial returns a client of the containerd of the node, which connects on first use. A containerd that does not run
// is not waited for.
func (v *View) Dial() (*ctrd.Client, error) {
	socket, err := v.Follow(v.Distro.Socket)
	if err != nil {
		return nil, err
	}
	return ctrd.Dial(socket, 0)
}

// ask returns the state of the containerd of the node.
func (v *View) ask(ctx context.Context) (*ctrd.State, error) {
	c, err := v.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.State(ctx)
}

// process corrects what the distribution usually has by what the running process of containerd has:
// its unit, and its main file.
func (v *View) process() {
	pid, err := listener(v.Distro.Socket)
	if err != nil || pid <= 0 { // of another namespace
		return
	}
	if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
		if unit := unitOf(string(cgroup)); unit != "" {
			v.Unit = unit
		}
	}
	if argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		if file := configOf(strings.Split(strings.TrimSuffix(string(argv), "\x00"), "\x00")); file != "" {
			v.Distro.Config = file
		}
	}
}

// configOf returns the absolute path of the configuration in the arguments of containerd, or "".
func configOf(argv []string) string {
	for i, a := range argv {
		name, value, joined := strings.Cut(a, "=")
		switch {
		case name != "--config" && name != "-config" && name != "-c":
			continue
		case !joined && i+1 < len(argv):
			value = argv[i+1]
		}
		if filepath.IsAbs(value) {
			return filepath.Clean(value)
		}
	}
	return ""
}

// version sets the version of containerd: as given, as answered, as seen earlier, or as printed by its
// program.
func (v *View) version(ctx context.Context, o Options) (err error) {
	switch {
	case o.Version != "":
		v.Version, err = containerdversion.Parse(o.Version)
		return err
	case v.State != nil:
		v.Version, v.Unknown = containerdversion.Parse(v.State.Version)
	case o.Earlier != "":
		v.Version, v.Unknown = containerdversion.Parse(o.Earlier)
	default:
		v.Version, v.Unknown = v.program(ctx)
		if v.Unknown != nil {
			v.Unknown = errors.Join(v.Silent, v.Unknown)
		}
	}
	if v.Unknown != nil {
		v.Version = containerdversion.Newest
	}
	return nil
}

// program returns the version that the program containerd prints.
func (v *View) program(ctx context.Context) (containerdversion.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	name := "containerd"
	if v.Root == "/" { // it can be anywhere in the PATH
		if found, err := exec.LookPath(name); err == nil {
			name = found
		}
	}
	text, err := v.Run(ctx, name, "--version")
	if err != nil {
		return containerdversion.Version{}, err
	}
	// containerd github.com/containerd/containerd/v2 v2.4.2 <revision>
	if words := strings.Fields(text); len(words) > 2 {
		return containerdversion.Parse(words[2])
	}
	return containerdversion.Version{}, fmt.Errorf("containerd --version prints %q: %w", text, errdefs.ErrNotFound)
}
