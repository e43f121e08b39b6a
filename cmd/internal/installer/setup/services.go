package setup

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/contrib/systemd"
)

func (p *Plan) systemctl(ctx context.Context, args ...string) error {
	_, err := p.view.Run(ctx, append([]string{"systemctl"}, args...)...)
	return err
}

// service executes a step about units or the daemon.
func (p *Plan) service(ctx context.Context, s Step) error {
	units := strings.Fields(s.Target)
	switch s.Action {
	case Enable:
		return errors.Join(p.systemctl(ctx, "daemon-reload"), p.systemctl(ctx, append([]string{"enable"}, units...)...))
	case Start:
		return p.start(ctx)
	case Unmount:
		_, err := p.view.Run(ctx, s.Target, "unmount")
		return err
	}
	return p.disable(ctx, units)
}

// disable stops units, and has them not start at boot.
func (p *Plan) disable(ctx context.Context, units []string) error {
	if !p.view.Systemd || len(units) == 0 {
		return nil
	}
	for _, u := range units {
		if !p.view.hasUnit(u) { // somebody has removed it, and systemctl does not know it any more
			_ = p.systemctl(ctx, "stop", u)
			if err := p.view.disk().unlink(wantsLink(u)); err != nil {
				return err
			}
			continue
		}
		if err := p.systemctl(ctx, "disable", "--now", u); err != nil {
			return err
		}
	}
	// Removes the files that systemd keeps for the daemon; old versions of systemd do not support
	// this and keep none.
	_ = p.systemctl(ctx, "clean", "--what=fdstore", serviceName)
	return nil
}

// start starts or restarts the daemon. A daemon that has bound the port itself releases it to the
// socket unit.
func (p *Plan) start(ctx context.Context) error {
	if err := p.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if p.view.hasUnit(socketName) && p.systemctl(ctx, "is-active", "--quiet", socketName) != nil {
		if err := p.systemctl(ctx, "stop", serviceName); err != nil {
			return err
		}
		if err := p.systemctl(ctx, "start", socketName); err != nil {
			return err
		}
	}
	return p.systemctl(ctx, "restart", serviceName)
}

// mounts returns the root of ballastd, and where it is if links lead there: words of RequiresMountsFor=.
// https://www.freedesktop.org/software/systemd/man/257/systemd.unit.html#RequiresMountsFor=
func (v *view) mounts() (string, error) {
	here, err := v.Follow(v.Config.Root)
	if err != nil {
		return "", err
	}
	words := v.Config.Root
	if there := filepath.Join("/", strings.TrimPrefix(here, v.Root)); there != v.Config.Root {
		words += " " + strconv.Quote(there) // it can have blanks
	}
	return strings.ReplaceAll(words, "%", "%%"), nil
}

// units returns the units for this host; there is no socket unit without a facade.
func (b *builder) units() (map[string]string, error) {
	mounts, err := b.mounts()
	if err != nil {
		return nil, err
	}
	const usual = "StateDirectory=ballast\nStateDirectoryMode=0700\n"
	state := usual
	if b.Config.Root != config.Default().Root {
		state = ""
	}
	before := make([]string, len(b.Distro.Services))
	for i, s := range b.Distro.Services {
		before[i] = s + ".service"
	}
	r := strings.NewReplacer(
		"ExecStart="+DefaultBinDir+"/", "ExecStart="+b.o.BinDir+"/",
		"Before=containerd.service", "Before="+strings.Join(before, " "),
		"ListenStream=127.0.0.1:5757\n", "ListenStream="+listenStream(b.Config.Facade.Listen)+"\n",
		"--socket=/run/ballast/", "--socket="+filepath.Dir(b.Config.Address)+"/",
		"RequiresMountsFor=/var/lib/ballast\n", "RequiresMountsFor="+mounts+"\n",
		usual, state,
	)
	units := map[string]string{}
	for name, text := range systemd.Units {
		if name != socketName || b.Config.Facade.Listen != "" {
			units[name] = r.Replace(text)
		}
	}
	return units, nil
}

// listenStream returns an address for systemd, which knows no host names, and takes a port alone for all addresses.
// https://www.freedesktop.org/software/systemd/man/257/systemd.socket.html#ListenStream=
func listenStream(address string) string {
	switch host, port, _ := net.SplitHostPort(address); host {
	case "localhost":
		return net.JoinHostPort("127.0.0.1", port)
	case "":
		return port
	}
	return address
}

// installed returns the units of ballast on this host, in the order in which they are stopped: the socket would
// start the service again, and the daemon leaves its mount to the holder.
func (v *view) installed() []string {
	units := []string{socketName, serviceName, holderName}
	return slices.DeleteFunc(units, func(u string) bool { return !v.Exists(filepath.Join(unitDir, u)) && !v.Exists(wantsLink(u)) })
}

// enabled reports whether units start at boot.
func (b *builder) enabled(units []string) bool {
	return !slices.ContainsFunc(units, func(u string) bool { return !b.Exists(wantsLink(u)) })
}

// wantsLink returns the symbolic link that makes a unit start at boot.
func wantsLink(unit string) string {
	target := "multi-user.target"
	if strings.HasSuffix(unit, ".socket") {
		target = "sockets.target"
	}
	return filepath.Join(unitDir, target+".wants", unit)
}
