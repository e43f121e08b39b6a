package node

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The names of distributions.
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

// Distros returns the names of distributions, with Auto.
func Distros() []string { return []string{Auto, Plain, Kubeadm, K3s, RKE2, Kind, EKS, Talos} }

// A Distro describes where a distribution of Kubernetes, or a machine without one, has its
// containerd.
type Distro struct {
	Name     string
	Config   string   // main configuration file of containerd
	Socket   string   // of containerd
	HostsDir string   // of hosts.toml files, unless containerd's configuration names another one
	Services []string // units of containerd; the first one on the host is restarted

	// Generated means that the service writes Config at each start, from templates beside it.
	Generated bool

	// ReadOnly means that the system cannot be changed from inside.
	ReadOnly bool

	// marks are paths that identify the distribution; one is sufficient.
	marks []string
}

// containerdOf returns a Distro with containerd as installed by its own packages.
func containerdOf(name string, marks ...string) Distro {
	return Distro{
		Name: name, Config: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock",
		HostsDir: config.ContainerdHostsDir, Services: []string{"containerd"}, marks: marks,
	}
}

// rancher returns a Distro with containerd inside of k3s or RKE2.
// https://docs.k3s.io/advanced#configuring-containerd, https://docs.rke2.io/advanced#configuring-containerd
func rancher(name string, services ...string) Distro {
	dir := "/var/lib/rancher/" + name + "/agent/etc/containerd"
	return Distro{
		Name: name, Config: dir + "/config.toml", Socket: "/run/k3s/containerd/containerd.sock",
		HostsDir: dir + "/certs.d", Services: services, Generated: true, marks: []string{dir, "/etc/rancher/" + name},
	}
}

// distros returns the distributions in the order of detection: the more specific ones come first.
func distros() []Distro {
	talos := containerdOf(Talos, "/etc/cri/containerd.toml")
	talos.Config, talos.HostsDir, talos.ReadOnly = "/etc/cri/containerd.toml", "/var/lib/ballast-hosts", true
	return []Distro{
		talos,
		rancher(RKE2, "rke2-server", "rke2-agent"),
		rancher(K3s, "k3s", "k3s-agent"),
		containerdOf(EKS, "/etc/eks"),
		containerdOf(Kind, "/kind/version"),
		containerdOf(Kubeadm, "/var/lib/kubelet/kubeadm-flags.env", "/etc/kubernetes/kubelet.conf"),
		containerdOf(Plain),
	}
}

// distro returns the distribution of a name, or with Auto the one that is detected.
func (h Host) distro(name string) (Distro, error) {
	for _, d := range distros() {
		switch {
		case name == d.Name:
			return d, nil
		case name != Auto && name != "":
		case d.Name == Plain, slices.ContainsFunc(d.marks, h.Exists):
			return d, nil
		}
	}
	return Distro{}, fmt.Errorf("%q is not one of %s: %w", name, strings.Join(Distros(), ", "), errdefs.ErrInvalidArgument)
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
func (d Distro) service(h Host) string {
	for _, s := range d.Services {
		for _, dir := range unitDirs {
			if h.Exists(filepath.Join(dir, s+".service")) {
				return s
			}
		}
	}
	return d.Services[0]
}
