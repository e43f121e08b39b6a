package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnitOfAnotherRoot: ballastd starts after the disk of its root, whichever way leads there, and systemd makes no
// directory in the place of the default one.
func TestUnitOfAnotherRoot(t *testing.T) {
	const state = "\nStateDirectory=ballast\nStateDirectoryMode=0700\n"
	for _, tt := range []struct {
		root, link string // the root is a link to it
		want       string
		state      bool
	}{
		{"/var/lib/ballast", "", "/var/lib/ballast", true},
		{"/data/100%/ballast", "", "/data/100%%/ballast", false},
		{"/data/ballast", "/mnt/a b/ballast", `/data/ballast "/mnt/a b/ballast"`, false},
		{"/var/lib/ballast", "/mnt/ballast", `/var/lib/ballast "/mnt/ballast"`, true},
	} {
		r := newRoot(t, "plain")
		r.write(configFile, "version = 1\nroot = \""+tt.root+"\"\n")
		if tt.link != "" {
			at := filepath.Join(r.dir, tt.root)
			r.ok(os.MkdirAll(filepath.Dir(at), 0o755))
			r.ok(os.Symlink(tt.link, at))
		}
		r.set(Options{})
		unit := r.read(unitDir + "/" + serviceName)
		if !strings.Contains(unit, "\nRequiresMountsFor="+tt.want+"\n") || strings.Count(unit, "RequiresMountsFor=") != 1 || strings.Contains(unit, state) != tt.state {
			t.Errorf("%s to %q: the unit has not %s, or StateDirectory is not %v:\n%s", tt.root, tt.link, tt.want, tt.state, unit)
		}
	}
}

// TestListenStream writes addresses of the facade as systemd reads them.
func TestListenStream(t *testing.T) {
	for listen, want := range map[string]string{
		"localhost:5758": "127.0.0.1:5758", ":5758": "5758", "[::1]:5758": "[::1]:5758", "127.0.0.1:5758": "127.0.0.1:5758",
	} {
		r := newRoot(t, "plain")
		r.write(configFile, "version = 1\n[facade]\nlisten = \""+listen+"\"\nallow_remote = true\n")
		r.set(Options{})
		if unit := r.read(unitDir + "/" + socketName); !strings.Contains(unit, "\nListenStream="+want+"\n") {
			t.Errorf("%s: %s", listen, unit)
		}
	}
}
