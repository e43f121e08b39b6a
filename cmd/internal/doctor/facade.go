package doctor

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/portowner"
	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// facadeTimeout is how long the facade may take to answer.
const facadeTimeout = 5 * time.Second

// facade says who has the port of the facade, and how it is guarded.
func (d *Doctor) facade(h *admin.Health) {
	const check = "facade"
	address := d.Config.Facade.Listen
	switch {
	case address == "" || h != nil && h.Facade != address: // said by daemon
		return
	case h == nil:
		if o, err := portowner.Of(address); err == nil && o.PID != 1 { // of the service manager
			d.fail(check, endOf(o), "ballastd does not answer, and %s has the port of its facade", o)
		}
		return
	}
	f := h.FacadeHealth
	switch {
	case f.Error != "" && f.Owner != nil:
		d.fail(check, endOf(*f.Owner)+"; systemctl enable --now ballastd.socket keeps the port after that", "no tags can be pulled through the facade: %s has its port: %s", f.Owner, f.Error)
	case f.Error != "":
		d.fail(check, "journalctl -u ballastd says more", "no tags can be pulled through the facade: %s", f.Error)
	case f.Plain:
		d.warn(check, "take facade.insecure_plain_http out of the configuration; systemctl restart ballastd; ballast config hosts --upgrade",
			"it speaks plain HTTP: every user of this node gets what the node can pull, and whoever binds %s while ballastd is down gets pull secrets and decides what images are", address)
	case f.HeldElsewhere != "":
		d.warn(check, "systemctl edit ballastd.socket: ListenStream="+address, "ballastd.socket holds %s, the facade is at %s: nobody holds that while ballastd is down", f.HeldElsewhere, address)
	case f.Manager && !f.Held:
		d.warn(check, "systemctl enable ballastd.socket; systemctl stop ballastd; systemctl start ballastd.socket ballastd",
			"nobody holds the port %s while ballastd is down: another process can bind it, and pulls fail until that ends", address)
	case f.Keys != nil && !f.Keys.Remade.IsZero():
		d.warn(check, "nothing: hosts.toml files stay as they are, and the next restart forgets this", "the CA of the facade was made anew at %s, because the old one was lost: %s",
			f.Keys.Remade.Format(time.DateTime), f.Keys.Why)
	case f.Keys != nil:
		d.ok(check, "answers at %s to who has the key; its CA ends on %s", address, f.Keys.AuthorityEnds.Format(time.DateOnly))
	}
}

// endOf says how to get rid of who has the port.
func endOf(o portowner.Owner) string {
	if o.PID == 0 {
		return "ss -ltnp in each container: end the process"
	}
	return "find out what it is (ps -fp " + strconv.Itoa(o.PID) + ") and end it"
}

// ask asks the facade as containerd does, with the keys that a hosts.toml names, and returns why it can
// not be done.
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
