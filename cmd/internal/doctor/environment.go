package doctor

import (
	"context"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
)

// environment checks that ballastd has the variables that containerd's requests to registries obey.
func (d *Doctor) environment(ctx context.Context, h *wire.Health) {
	ours := node.EnvironmentAt(d.Config.AdminAddress)
	if h == nil || ours == nil { // or it cannot be seen from here
		return
	}
	if lacks := node.Lacks(ours, d.Node.Environment(ctx)); len(lacks) > 0 {
		d.Warn("environment", "ballast setup, which writes them to /etc/default/ballastd; for a daemon in a pod, the value env of the chart",
			"containerd has %s in its environment, and ballastd has not: it may not reach what containerd reaches", strings.Join(lacks, ", "))
	}
}
