package doctor

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
)

// Status is the result of a check.
type Status string

// The values of Status.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works, but with limits, or not for all pods
	Fail Status = "fail" // models do not work, or can be shown wrongly
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // the command to run or the text to write
}

// A Doctor checks a node. All fields are required unless stated otherwise.
type Doctor struct {
	// Config is ballast's configuration.
	Config *config.Config

	// ConfigError is why Config is the default and not the content of the files. May be nil.
	ConfigError error

	// Client is the client of the daemon.
	Client *api.Client

	// Version is the version of this program.
	Version string

	// ContainerdVersion returns the version of the node's containerd.
	ContainerdVersion func(context.Context) (containerdversion.Version, error)

	// ContainerdConfig is the main configuration file of containerd.
	ContainerdConfig string

	// ContainerdUnit is the systemd unit of containerd, such as "containerd" or "k3s".
	ContainerdUnit string

	// HostsDirs are directories of hosts.toml files besides those in the configuration of
	// containerd. May be empty.
	HostsDirs []string

	// Probe returns why the kernel cannot show models by stubs below a directory, or nil.
	Probe func(dir string) error

	// ProbeUsers returns why mounts of a directory cannot be id-mapped, or nil.
	ProbeUsers func(dir string) error

	findings []Finding
}

// Run makes all checks and returns the findings, causes before effects.
func (d *Doctor) Run(ctx context.Context) []Finding {
	d.findings = nil
	if d.ConfigError != nil {
		d.fail("config", "correct that file; ballastd does not start with it. The other checks use the defaults", "%s", api.Text(d.ConfigError))
	}
	health := d.daemon(ctx)
	d.facade(health)
	d.root(health)
	d.kernel(health)
	d.lazy(health)
	d.mounts(ctx, health)
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

// restart returns the command that restarts containerd.
func (d *Doctor) restart() string { return "systemctl restart " + d.ContainerdUnit }

func (d *Doctor) ok(check, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: OK, Message: fmt.Sprintf(format, a...)})
}

func (d *Doctor) warn(check, fix, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: Warn, Fix: fix, Message: fmt.Sprintf(format, a...)})
}

func (d *Doctor) fail(check, fix, format string, a ...any) {
	d.findings = append(d.findings, Finding{Check: check, Status: Fail, Fix: fix, Message: fmt.Sprintf(format, a...)})
}
