package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func TestSharedDirs(t *testing.T) {
	clearEnvironment(t)
	for _, tt := range []struct{ key, value, want string }{
		{"root", "/", "root: / is used by other programs; use a directory of its own, such as /var/lib/ballast"},
		{"root", "/var/lib", "root: /var/lib is used by other programs"},
		{"root", "/var/lib/", "root: /var/lib is used"},
		{"root", "/var/lib/ballast/../", "root: /var/lib is used"},
		{"root", "//var//lib/.", "root: /var/lib is used"},
		{"root", "/var/run", "root: /var/run is used"},
		{"root", "/home", "root: /home is used"},
		{"root", "/var/lib/containerd", "root: /var/lib/containerd is used"},
		{"root", "/var/lib/containerd/ballast", "root: /var/lib/containerd/ballast is used"},
		{"root", "/var/lib/kubelet/pods", "root: /var/lib/kubelet/pods is used"},
		{"root", "/run/ballast", "address: /run/ballast/ballastd.sock is in the root"},
		{"address", "/run/ballastd.sock", "address: /run/ballastd.sock is in /run, which is used by other programs; use a directory of its own, such as /run/ballast"},
		{"address", "/var/run/ballastd.sock", "is in /var/run, which"},
		{"address", "/run/k3s/../ballastd.sock", "is in /run, which"},
		{"address", "/run/k3s/ballastd.sock", "is in /run/k3s, which"},
		{"address", "/run/containerd/ballastd.sock", "is in /run/containerd, which"},
		{"address", "/var/lib/ballast/ballastd.sock", "is in the root"},
		{"admin_address", "/tmp/admin.sock", "admin_address: /tmp/admin.sock is in /tmp, which"},
		{"admin_address", "/dev/shm/admin.sock", "is in /dev/shm, which"},
		{"root", "/srv/ballast", ""},
		{"root", "/data", ""}, // such as a disk for models
		{"root", "/var/lib/containerd-models", ""},
		{"address", "/run/k3s/ballast/ballastd.sock", ""},
		{"address", "/var/run/ballast/ballastd.sock", ""},
	} {
		t.Run(tt.key+" "+tt.value, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			write(t, path, fmt.Sprintf("version = 1\n%s = %q\n", tt.key, tt.value))
			switch _, err := Load(path); {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}
