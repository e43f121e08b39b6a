package doctor

import (
	"context"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"golang.org/x/sys/unix"
)

// A Doctor checks a node. All fields are required unless stated otherwise.
type Doctor struct {
	// Config is ballast's configuration.
	Config *config.Config

	// ConfigError is why Config is the default and not the content of the files. May be nil.
	ConfigError error

	// Client is the client of the daemon.
	Client *wire.Client

	// Version is the version of this program.
	Version string

	// Node is the view of the node, and NodeError why its configuration of containerd is missing.
	// May be nil.
	Node      *node.View
	NodeError error

	// Fresh is set for a node on which ballast was never set up.
	Fresh bool

	// HostsDirs are directories of hosts.toml files besides those in the configuration of
	// containerd. May be empty.
	HostsDirs []string

	// Touch returns when the disk of a directory has written something, or an error with the text of why it refuses to.
	// Another process writes: one that waits for a disk that hangs cannot end.
	Touch func(dir string) error

	// Probe returns why the kernel cannot show models by stubs below a directory, or nil.
	Probe func(dir string) error

	// ProbeUsers returns why mounts of a directory cannot be id-mapped, or nil.
	ProbeUsers func(dir string) error

	silent    bool // the daemon runs, and does not answer
	forDocker bool // Docker Engine has ballast, or is to have it

	node.Findings
}

// Run makes all checks and returns the findings, causes before effects. Those after the end of ctx mean nothing.
func (d *Doctor) Run(ctx context.Context) node.Findings {
	d.Findings = nil
	if d.ConfigError != nil {
		d.Fail("config", "correct that file; ballastd does not start with it. The other checks use the defaults", "%s", wire.Text(d.ConfigError))
	}
	health, allowed := d.daemon(ctx)
	if !allowed || ctx.Err() != nil { // the other findings would be guesses
		return d.Findings
	}
	writes := d.disk(diskTime)
	d.facade(health)
	d.mirrors(health)
	if writes {
		d.root(health)
		d.kernel(health)
		d.lazy(health)
	}
	d.mounts(ctx, health)
	d.store(health)
	d.snapshots(health)
	d.space(health)
	d.containerd(ctx)
	d.docker(ctx)
	d.environment(ctx, health)
	if writes {
		d.users(ctx, health)
	}
	if writes {
		d.hosts(ctx, health)
	} else { // it reads the keys of the facade, which may be on that disk
		d.within(diskTime, "hosts.toml", func(d *Doctor) { d.hosts(ctx, health) })
	}
	d.healing(ctx)
	return d.Findings
}

// diskTime is how long a disk may take to write something.
const diskTime = 20 * time.Second

// disk reports whether the disk of the root can be written. Checks that use a disk that hangs would never end, and
// those that write take the errors of a disk for missing features of the kernel.
func (d *Doctor) disk(limit time.Duration) bool {
	const check, fix = "disk", "see dmesg; the checks of the root, of the kernel and of user namespaces need the disk"
	var err error
	if !ends(limit, func() { err = d.Touch(d.Config.Root) }) {
		d.Fail(check, fix, "the disk of %s hangs: it has written nothing for %v", d.Config.Root, limit)
		return false
	}
	for _, broken := range []error{unix.EROFS, unix.EIO} { // other checks explain other errors
		if err != nil && strings.Contains(err.Error(), broken.Error()) {
			d.Fail(check, fix, "the disk of %s cannot be written: %v", d.Config.Root, broken)
			return false
		}
	}
	return true
}

// ends reports whether a function ends within a limit. It is left otherwise.
func ends(limit time.Duration, do func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// within makes a check that may use a disk that hangs, and leaves it after a limit.
func (d *Doctor) within(limit time.Duration, name string, check func(*Doctor)) {
	apart := *d
	apart.Findings = nil
	if ends(limit, func() { check(&apart) }) {
		d.Findings = append(d.Findings, apart.Findings...)
	} else {
		d.Warn(name, "", "not checked: it needs files of the disk that hangs")
	}
}

// restart returns the command that restarts containerd.
func (d *Doctor) restart() string { return "systemctl restart " + d.Node.Unit }
