package setup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
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

// Distros are the values of Options.Distro.
func Distros() []string { return []string{Auto, Plain, Kubeadm, K3s, RKE2, Kind, EKS, Talos} }

// A distro says where a distribution of Kubernetes, or a machine without one, has its containerd.
type distro struct {
	name     string
	config   string   // main configuration file of containerd
	socket   string   // of containerd
	hostsDir string   // of hosts.toml files
	services []string // units of containerd; the first that the host has is restarted

	// generated says that config is written anew at each start of the service, from templates beside it.
	generated bool

	// readOnly says that nothing of the system can be changed from inside.
	readOnly bool

	// marks are paths of which one says that a host is of this distribution.
	marks []string
}

// containerdOf is containerd as its own packages install it.
func containerdOf(name string, marks ...string) distro {
	return distro{
		name: name, config: "/etc/containerd/config.toml", socket: "/run/containerd/containerd.sock",
		hostsDir: "/etc/containerd/certs.d", services: []string{"containerd"}, marks: marks,
	}
}

// rancher is containerd inside of k3s and RKE2.
// https://docs.k3s.io/advanced#configuring-containerd, https://docs.rke2.io/advanced#configuring-containerd
func rancher(name string, services ...string) distro {
	dir := "/var/lib/rancher/" + name + "/agent/etc/containerd"
	return distro{
		name: name, config: dir + "/config.toml", socket: "/run/k3s/containerd/containerd.sock",
		hostsDir: dir + "/certs.d", services: services, generated: true, marks: []string{dir, "/etc/rancher/" + name},
	}
}

// distros are in the order in which a host is looked at: what is more special comes first.
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

// distroOf returns the distribution of a name, or with Auto what the host is.
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

// ContainerdConfig returns the main configuration file of containerd of a host, whose root this process sees at
// root.
func ContainerdConfig(root string) string {
	d, err := host{root}.distroOf(Auto)
	if err != nil {
		panic("setup: internal error: " + err.Error()) // every host is something
	}
	return d.config
}

// unitDirs are where systemd looks for units of the system.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// service returns the unit of containerd that the host has, or the usual one.
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
