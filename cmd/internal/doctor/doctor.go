package doctor

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
)

// Status is how well a thing is.
type Status string

// The values of Status.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works, but not as well as it could, or not for everybody
	Fail Status = "fail" // models do not work, or can be shown wrongly
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // what to write or to run
}

// A Doctor examines a node. All fields are needed unless said otherwise.
type Doctor struct {
	// Config is ballast's configuration.
	Config *config.Config

	// ConfigError is why Config is the default and not what the files say. Can be nil.
	ConfigError error

	// Client asks the daemon.
	Client *admin.Client

	// Version is that of the program which asks.
	Version string

	// ContainerdVersion finds out the version of the node's containerd.
	ContainerdVersion func(context.Context) (containerdversion.Version, error)

	// ContainerdConfig is the main configuration file of containerd.
	ContainerdConfig string

	// HostsDirs are directories of hosts.toml files besides those that the configuration of
	// containerd names. Can be empty.
	HostsDirs []string

	// Probe says whether the kernel can show models by stubs below a directory.
	Probe func(dir string) error

	// ProbeUsers says whether mounts of a directory can be id-mapped.
	ProbeUsers func(dir string) error

	findings []Finding
}

// Run makes all checks and returns what they found, in an order that puts causes before
// effects.
func (d *Doctor) Run(ctx context.Context) []Finding {
	d.findings = nil
	if d.ConfigError != nil {
		d.fail("config", "correct that file; ballastd does not start with it. The other checks use the defaults", "%s", admin.Text(d.ConfigError))
	}
	health := d.daemon(ctx)
	d.facade(health)
	d.root(health)
	d.kernel(health)
	d.lazy(health)
	d.store(health)
	d.snapshots(health)
	d.space(health)
	c := d.containerd(ctx)
	d.users(ctx, health, c)
	d.hosts(ctx, health, c)
	d.healing(ctx)
	return d.findings
}

// Failed reports whether one of the findings is Fail.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Status == Fail {
			return true
		}
	}
	return false
}

func (d *Doctor) ok(check, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: OK, Message: fmt.Sprintf(format, a...)})
}

func (d *Doctor) warn(check, mend, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: Warn, Fix: mend, Message: fmt.Sprintf(format, a...)})
}

func (d *Doctor) fail(check, mend, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: Fail, Fix: mend, Message: fmt.Sprintf(format, a...)})
}
