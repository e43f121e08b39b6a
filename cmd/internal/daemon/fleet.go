package daemon

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/fleet"
	"github.com/ballast-dev/ballast/cmd/internal/serve"
	"golang.org/x/net/netutil"
)

// maxFleetConnections limits the simultaneous connections of other nodes.
const maxFleetConnections = 64

func fleetKeys(c *config.Config) fleet.Keys {
	return fleet.Keys{CA: c.Fleet.CA, Cert: c.Fleet.Cert, Key: c.Fleet.Key}
}

// serveFleet answers other nodes until ctx ends. If it fails, other nodes find digests in another
// way.
func (d *Daemon) serveFleet(ctx context.Context) error {
	listen := func() (net.Listener, error) {
		keys, err := fleetKeys(d.config).Server()
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", d.config.Fleet.Listen)
		if err != nil {
			return nil, err
		}
		return tls.NewListener(netutil.LimitListener(l, maxFleetConnections), keys), nil
	}
	return serve.Port(ctx, d.log, "other nodes cannot ask this one; trying again", listen, fleet.Handler(d.store))
}
