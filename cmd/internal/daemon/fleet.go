package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/fleet"
	"golang.org/x/net/netutil"
)

// maxFleetConnections is how many connections of other nodes there are at the same time.
const maxFleetConnections = 64

func fleetKeys(c *config.Config) fleet.Keys {
	return fleet.Keys{CA: c.Fleet.CA, Cert: c.Fleet.Cert, Key: c.Fleet.Key}
}

// serveFleet answers other nodes until ctx ends. While the port or the keys can not be had, that is tried again: it
// costs others a digest that they find in another way, and this node nothing.
func (d *Daemon) serveFleet(ctx context.Context) error {
	address := d.config.Fleet.Listen
	for said := false; ; said = true {
		keys, err := fleetKeys(d.config).Server()
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", address); err == nil {
				return serveHTTP(ctx, d.log, fleet.Handler(d.store), tls.NewListener(netutil.LimitListener(l, maxFleetConnections), keys))
			}
		}
		if !said {
			d.log.Error("other nodes can not ask this one; trying again", "address", address, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(portRetry):
		}
	}
}
