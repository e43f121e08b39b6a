package doctor

import (
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
)

// docker checks Docker Engine where it has ballast, or was given it by setup.
func (d *Doctor) docker(ctx context.Context) {
	const check = "docker"
	last, err := setup.Recorded("/")
	if err != nil {
		return // healing says why
	}
	is, err := d.Node.Docker(ctx)
	d.forDocker = last.Docker || err == nil && is.Driver == snippet.Snapshotter
	switch {
	case !d.forDocker:
	case err != nil:
		d.Warn(check, "systemctl start docker", "%v", err)
	case is.TooOld():
		d.Fail(check, "upgrade Docker Engine", "Docker Engine %s is older than %d", is.Version, node.DockerMajor)
	case is.Driver != snippet.Snapshotter:
		d.Fail(check, "ballast setup --docker, and look at the command line of dockerd", "the storage driver of Docker is %s, so that it cannot use models", is.Driver)
	default:
		d.OK(check, "ballast is the storage driver of Docker Engine %s, for all its images and containers", is.Version)
	}
}
