package config

import (
	"path/filepath"
	"slices"
	"strings"
)

// sharedDirs are directories of the system or of several programs, by their usual name. Directories
// below them can be ballast's.
// https://refspecs.linuxfoundation.org/FHS_3.0/fhs-3.0.html
var sharedDirs = []string{
	"/", "/bin", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt", "/root", "/run",
	"/sbin", "/srv", "/tmp", "/usr", "/usr/lib", "/usr/local", "/usr/local/lib", "/usr/share", "/var",
	"/run/containerd", "/run/docker", "/run/k3s", "/run/lock", "/run/secrets", "/run/systemd", "/run/user",
	"/var/cache", "/var/lib", "/var/lib/docker", "/var/lib/rancher", "/var/lib/rancher/k3s", "/var/lib/rancher/rke2",
	"/var/local", "/var/log", "/var/opt", "/var/spool", "/var/tmp",
}

// sharedTrees are directories that belong to others with everything below them.
var sharedTrees = []string{
	"/boot", "/etc/containerd", "/etc/kubernetes", "/proc", "/run/k3s/containerd", "/sys", "/var/lib/containerd", "/var/lib/etcd", "/var/lib/kubelet",
	"/var/lib/rancher/k3s/agent/containerd", "/var/lib/rancher/rke2/agent/containerd",
}

// Shared reports whether a directory belongs to the system or to other programs, by its name: symbolic
// links are not followed.
func Shared(dir string) bool {
	dir = filepath.Clean(dir)
	if rest, ok := strings.CutPrefix(dir, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		dir = "/run" + rest
	}
	return slices.Contains(sharedDirs, dir) || slices.ContainsFunc(sharedTrees, func(tree string) bool {
		return dir == tree || strings.HasPrefix(dir, tree+"/")
	})
}

// checkDirs checks that the root and the directories of the sockets can be ballast's.
func (c *Config) checkDirs() error {
	if Shared(c.Root) {
		return invalid("root", "%s is used by other programs; use a directory of its own, such as /var/lib/ballast", c.Root)
	}
	for _, s := range []struct{ key, path string }{{"address", c.Address}, {"admin_address", c.AdminAddress}, {"resolve.address", c.Resolve.Address}} {
		switch dir := filepath.Dir(filepath.Clean(s.path)); {
		case dir == c.Root:
			return invalid(s.key, "%s is in the root; use another directory, such as /run/ballast", s.path)
		case Shared(dir):
			return invalid(s.key, "%s is in %s, which is used by other programs; use a directory of its own, such as /run/ballast", s.path, dir)
		}
	}
	return nil
}
