package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/contrib/systemd"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/errdefs"
)

// run runs a program of the host, with the host's root directory. It does not get the environment
// of this process.
//
// In another root, systemctl would detect a chroot and not contact the manager; the variable
// prevents that, and the manager's socket below /run is the host's.
func (h host) run(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + strings.Join(programDirs, ":"), "LC_ALL=C", "SYSTEMD_IGNORE_CHROOT=1", "SYSTEMD_PAGER="}
	name := argv[0]
	for _, dir := range programDirs {
		if strings.Contains(name, "/") {
			break
		}
		if full := dir + "/" + argv[0]; h.exists(full) {
			name = full
		}
	}
	if !strings.Contains(name, "/") {
		return "", fmt.Errorf("%s does not exist on the host: %w", argv[0], errdefs.ErrNotFound)
	}
	cmd.Path, cmd.Err = name, nil
	if h.root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: h.root}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		if text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return text, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return text, nil
}

// programDirs are the directories of programs of the host, as in root's PATH.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func (p *Plan) systemctl(ctx context.Context, args ...string) error {
	_, err := p.view.run(ctx, append([]string{"systemctl"}, args...)...)
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
		_, err := p.view.run(ctx, s.Target, "unmount")
		return err
	}
	for _, u := range units { // the socket first: it would start the service again
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
	if p.view.exists(unitDir+"/"+socketName) && p.systemctl(ctx, "is-active", "--quiet", socketName) != nil {
		if err := p.systemctl(ctx, "stop", serviceName); err != nil {
			return err
		}
		if err := p.systemctl(ctx, "start", socketName); err != nil {
			return err
		}
	}
	return p.systemctl(ctx, "restart", serviceName)
}

// containerdAnswers returns why containerd does not answer, or nil.
func (v *view) containerdAnswers(ctx context.Context) error {
	conn, err := v.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err = introspection.NewIntrospectionClient(conn).Plugins(ctx, &introspection.PluginsRequest{})
	return err
}

// units returns the units for this host; there is no socket unit without a facade.
func (b *builder) units() map[string]string {
	before := make([]string, len(b.distro.services))
	for i, s := range b.distro.services {
		before[i] = s + ".service"
	}
	r := strings.NewReplacer(
		"ExecStart="+DefaultBinDir+"/", "ExecStart="+b.o.BinDir+"/",
		"Before=containerd.service", "Before="+strings.Join(before, " "),
		"ListenStream=127.0.0.1:5757\n", "ListenStream="+b.config.Facade.Listen+"\n",
		"--socket=/run/ballast/", "--socket="+filepath.Dir(b.config.Address)+"/",
	)
	units := map[string]string{}
	for name, text := range systemd.Units {
		if name != socketName || b.config.Facade.Listen != "" {
			units[name] = r.Replace(text)
		}
	}
	return units
}

// installed returns the units of ballast on this host, in the order in which they are stopped: the
// daemon leaves its mount to the holder.
func (b *builder) installed() string {
	units := []string{socketName, serviceName, holderName}
	return strings.Join(slices.DeleteFunc(units, func(u string) bool { return !b.exists(filepath.Join(unitDir, u)) }), " ")
}

// enabled reports whether units start at boot.
func (b *builder) enabled(units []string) bool {
	return !slices.ContainsFunc(units, func(u string) bool { return !b.exists(wantsLink(u)) })
}

// wantsLink returns the symbolic link that makes a unit start at boot.
func wantsLink(unit string) string {
	target := "multi-user.target"
	if strings.HasSuffix(unit, ".socket") {
		target = "sockets.target"
	}
	return filepath.Join(unitDir, target+".wants", unit)
}
