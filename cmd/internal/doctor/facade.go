package doctor

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/door/portowner"
	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// facadeTimeout limits the time of a request to the facade.
const facadeTimeout = 5 * time.Second

// facade checks which process has the port of the facade, and how the facade is protected.
func (d *Doctor) facade(h *wire.Health) {
	const check = "facade"
	address := d.Config.Facade.Listen
	switch {
	case address == "" || d.silent || h != nil && h.Facade != address: // reported by daemon; a silent one has its port
		return
	case h == nil:
		if o, err := portowner.Of(address); err == nil && o.PID != 1 { // of the service manager
			d.Fail(check, endOf(o), "ballastd does not answer, and %s uses the port of its facade", o)
		}
		return
	}
	f := h.FacadeHealth
	switch {
	case f.Error != "" && f.Owner != nil:
		owner := portowner.Owner(*f.Owner)
		if owner.PID == 0 { // the installed daemon may not look into processes
			if o, err := portowner.Of(address); err == nil {
				owner = o
			}
		}
		d.Fail(check, endOf(owner)+"; then systemctl enable --now ballastd.socket reserves the port", "no tags can be pulled through the facade: %s uses its port: %s", owner, f.Error)
	case f.Error != "":
		d.Fail(check, "see journalctl -u ballastd", "no tags can be pulled through the facade: %s", f.Error)
	case f.Plain:
		d.Warn(check, "remove facade.insecure_plain_http from the configuration; systemctl restart ballastd; ballast doctor, which then names the hosts.toml files to write again",
			"it uses plain HTTP: every user of this node can pull what the node can pull, and a process that binds %s while ballastd is down receives pull secrets and can replace images", address)
	case f.HeldElsewhere != "":
		d.Warn(check, "systemctl edit ballastd.socket: ListenStream="+address, "ballastd.socket reserves %s, but the facade is at %s: that port is not reserved while ballastd is down", f.HeldElsewhere, address)
	case f.Manager && !f.Held:
		d.Warn(check, "systemctl enable ballastd.socket; systemctl stop ballastd; systemctl start ballastd.socket ballastd",
			"the port %s is not reserved while ballastd is down: another process can bind it, and pulls then fail until it ends", address)
	case f.Keys != nil && !f.Keys.Remade.IsZero():
		d.Warn(check, "nothing to do: hosts.toml files stay as they are, and this warning ends with the next restart", "the CA of the facade was created again at %s, because the old one was lost: %s",
			f.Keys.Remade.Format(time.DateTime), f.Keys.Why)
	case f.Keys != nil:
		d.OK(check, "answers at %s to callers with the key; its CA is valid until %s", address, f.Keys.AuthorityEnds.Format(time.DateOnly))
	}
}

// endOf returns how to free the port from its owner.
func endOf(o portowner.Owner) string {
	if o.PID == 0 {
		return "find the process with ss -ltnp in each container, and end it"
	}
	return "look at the process (ps -fp " + strconv.Itoa(o.PID) + ") and end it"
}

// ask sends a request to the facade as containerd does, with the keys that a hosts.toml names, and
// returns why it failed.
func (d *Doctor) ask(ctx context.Context, h docker.RegistryHost) error {
	ctx, cancel := context.WithTimeout(ctx, facadeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Scheme+"://"+h.Host+h.Path+"/", nil)
	if err != nil {
		return err
	}
	defer h.Client.CloseIdleConnections()
	res, err := h.Client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}
