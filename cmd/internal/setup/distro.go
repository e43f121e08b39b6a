package setup

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The names of distributions, for Options.Distro.
const (
	Auto    = "auto"
	Plain   = "plain"
	Kubeadm = "kubeadm"
	K3s     = "k3s"
	RKE2    = "rke2"
	Kind    = "kind"
	EKS     = "eks"
	Talos   = "talos"
)

// Distros returns the values of Options.Distro.
func Distros() []string { return []string{Auto, Plain, Kubeadm, K3s, RKE2, Kind, EKS, Talos} }

// A distro describes where a distribution of Kubernetes, or a machine without one, has its
// containerd.
type distro struct {
	name     string
	config   string   // main configuration file of containerd
	socket   string   // of containerd
	hostsDir string   // of hosts.toml files
	services []string // units of containerd; the first one on the host is restarted

	// generated means that the service writes config at each start, from templates beside it.
	generated bool

	// readOnly means that the system cannot be changed from inside.
	readOnly bool

	// marks are paths that identify the distribution; one is sufficient.
	marks []string
}

// containerdOf returns a distro with containerd as installed by its own packages.
func containerdOf(name string, marks ...string) distro {
	return distro{
		name: name, config: "/etc/containerd/config.toml", socket: "/run/containerd/containerd.sock",
		hostsDir: "/etc/containerd/certs.d", services: []string{"containerd"}, marks: marks,
	}
}

// rancher returns a distro with containerd inside of k3s or RKE2.
// https://docs.k3s.io/advanced#configuring-containerd, https://docs.rke2.io/advanced#configuring-containerd
func rancher(name string, services ...string) distro {
	dir := "/var/lib/rancher/" + name + "/agent/etc/containerd"
	return distro{
		name: name, config: dir + "/config.toml", socket: "/run/k3s/containerd/containerd.sock",
		hostsDir: dir + "/certs.d", services: services, generated: true, marks: []string{dir, "/etc/rancher/" + name},
	}
}

// distros returns the distributions in the order of detection: the more specific ones come first.
func distros() []distro {
	talos := containerdOf(Talos, "/etc/cri/containerd.toml")
	talos.config, talos.hostsDir, talos.readOnly = "/etc/cri/containerd.toml", "/var/lib/ballast-hosts", true
	return []distro{
		talos,
		rancher(RKE2, "rke2-server", "rke2-agent"),
		rancher(K3s, "k3s", "k3s-agent"),
		containerdOf(EKS, "/etc/eks"),
		containerdOf(Kind, "/kind/version"),
		containerdOf(Kubeadm, "/var/lib/kubelet/kubeadm-flags.env", "/etc/kubernetes/kubelet.conf"),
		containerdOf(Plain),
	}
}

// distroOf returns the distribution of a name, or with Auto the one that is detected.
func (h host) distroOf(name string) (distro, error) {
	for _, d := range distros() {
		switch {
		case name == d.name:
			return d, nil
		case name != Auto && name != "":
		case d.name == Plain, slices.ContainsFunc(d.marks, h.exists):
			return d, nil
		}
	}
	return distro{}, fmt.Errorf("%q is none of %s: %w", name, strings.Join(Distros(), ", "), errdefs.ErrInvalidArgument)
}

// detected returns the distribution of the host.
func (h host) detected() distro {
	d, err := h.distroOf(Auto)
	if err != nil {
		panic("setup: internal error: " + err.Error()) // the last distro matches every host
	}
	return d
}

// ContainerdConfig returns the main configuration file of containerd on a host, whose file system
// is at root in this process.
func ContainerdConfig(root string) string {
	return host{root}.detected().config
}

// ContainerdUnit returns the unit of containerd on a host, whose file system is at root in this
// process: that of the process at its socket, which is right for any distribution, or, if
// containerd does not run, that of the distribution.
func ContainerdUnit(root, socket string) string {
	if pid, err := listener(socket); err == nil {
		if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
			if unit := unitOf(string(cgroup)); unit != "" {
				return unit
			}
		}
	}
	h := host{root}
	return h.detected().service(h)
}

// listener returns the process that listens at a unix socket.
// https://man7.org/linux/man-pages/man7/unix.7.html
func listener(socket string) (pid int32, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	return pid, errors.Join(cerr, err)
}

// unitOf returns the service in a file /proc/PID/cgroup, without its suffix, or "" if it is not a
// system service.
// https://man7.org/linux/man-pages/man7/cgroups.7.html
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/system.slice/")
		first, _, _ := strings.Cut(path, "/")
		if unit, ok := strings.CutSuffix(first, ".service"); ok {
			return unit
		}
	}
	return ""
}

// unitDirs are the directories of systemd's system units.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// service returns the unit of containerd on the host, or the default one.
func (d distro) service(h host) string {
	for _, s := range d.services {
		for _, dir := range unitDirs {
			if h.exists(filepath.Join(dir, s+".service")) {
				return s
			}
		}
	}
	return d.services[0]
}
