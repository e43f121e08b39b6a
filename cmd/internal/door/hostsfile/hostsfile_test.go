package hostsfile

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

const ours = "server = \"https://ghcr.io\"\n[host.\"https://127.0.0.1:5757\"]\n"

// A node is the directory of containerd's configuration of a node.
type node struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) *node {
	n := &node{t, t.TempDir()}
	n.write("certs.d/ghcr.io/hosts.toml", ours)
	return n
}

func (n *node) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) at(p string) string { return filepath.Join(n.dir, p) }

func (n *node) write(p, text string) {
	n.t.Helper()
	n.ok(os.MkdirAll(filepath.Dir(n.at(p)), 0o755))
	n.ok(os.WriteFile(n.at(p), []byte(text), 0o644))
}

// list returns the list of a file that setup has written.
func (n *node) list(p string) []config.HostsFile {
	return []config.HostsFile{{File: n.at(p), Digest: digest.FromString(ours)}}
}

// TestWriter names who has replaced a hosts.toml of ballast.
func TestWriter(t *testing.T) {
	n := newNode(t)
	n.write("certs.d/a/hosts.toml", "[host.\"http://127.0.0.1:4001\".header]\nX-Dragonfly-Registry = \"https://a\"\n")
	n.write("certs.d/b/hosts.toml", "[host.'http://127.0.0.1:30020']\ndial_timeout = '200ms'\n")
	n.write("certs.d/_backup/d/hosts.toml", ours)
	for registry, want := range map[string]string{"a": Dragonfly, "b": Spegel, "ghcr.io": "", "d": Spegel, "e": ""} {
		if got := Writer(n.dir, "/certs.d/"+registry+"/hosts.toml"); got != want {
			t.Errorf("%s: got %q, want %q", registry, got, want)
		}
	}
}

// TestReplaced finds what is not as it is listed, in the root of containerd alone.
// TestNamesInHostsFiles finds addresses in files, and waits for no pipe.
func TestNamesInHostsFiles(t *testing.T) {
	n := newNode(t)
	n.ok(unix.Mkfifo(n.at("pipe"), 0o600))
	for _, tt := range []struct {
		file, address string
		want          bool
	}{
		{"certs.d/ghcr.io/hosts.toml", "127.0.0.1:5757", true}, {"certs.d/ghcr.io/hosts.toml", "127.0.0.1:5758", false},
		{"none", "127.0.0.1:5757", false}, {"pipe", "127.0.0.1:5757", false},
	} {
		if got := Names(n.at(tt.file), []string{"localhost:1", tt.address}); got != tt.want {
			t.Errorf("%s, %s: got %v", tt.file, tt.address, got)
		}
	}
}

func TestReplaced(t *testing.T) {
	const file = "certs.d/ghcr.io/hosts.toml"
	for name, tt := range map[string]struct {
		change func(n *node)
		want   bool
	}{
		"as listed":   {func(*node) {}, false},
		"gone":        {func(n *node) { n.ok(os.Remove(n.at(file))) }, true},
		"all gone":    {func(n *node) { n.ok(os.RemoveAll(n.at("certs.d"))) }, true},
		"replaced":    {func(n *node) { n.write(file, "server = \"https://ghcr.io\"\n") }, true},
		"a directory": {func(n *node) { n.ok(os.Remove(n.at(file))); n.ok(os.Mkdir(n.at(file), 0o755)) }, true},
		"large":       {func(n *node) { n.ok(os.Truncate(n.at(file), maxSize+1)) }, true},
		"a container": {func(n *node) { n.ok(os.RemoveAll(n.dir)) }, false},
	} {
		n := newNode(t)
		tt.change(n)
		if got := Replaced(n.list(file)); slices.Equal(got, []string{n.at(file)}) != tt.want || len(got) > 1 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestWatch notices when other programs replace, move and restore hosts.toml files, and another list.
func TestWatch(t *testing.T) {
	n := newNode(t)
	file := n.at("certs.d/ghcr.io/hosts.toml")
	dropIns := filepath.Join(t.TempDir(), "ballast/conf.d")
	list := func() []config.HostsFile { // as setup writes it after the start of the daemon
		if _, err := os.Stat(filepath.Join(dropIns, "00-closed.toml")); err != nil {
			return nil
		}
		return n.list("certs.d/ghcr.io/hosts.toml")
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan []string, 100), make(chan error, 1)
	var before []string
	look := func(files []config.HostsFile) {
		if now := Replaced(files); !slices.Equal(now, before) {
			seen <- now
			before = now
		}
	}
	go func() { ended <- Watch(ctx, dropIns, list, look) }()
	expect := func(want ...string) {
		t.Helper()
		select {
		case got := <-seen:
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		case <-time.After(5 * time.Minute):
			t.Fatal("nothing was noticed")
		}
	}
	at := func(p string) string { return n.at("certs.d/" + p) }
	n.ok(os.Mkdir(at("_backup"), 0o755))
	n.ok(os.Rename(at("ghcr.io"), at("_backup/ghcr.io"))) // as Spegel does
	time.Sleep(debounce)                                  // it is not listed yet
	n.ok(os.MkdirAll(dropIns, 0o755))
	n.ok(os.WriteFile(filepath.Join(dropIns, "00-closed.toml"), nil, 0o644))
	expect(file)
	n.ok(os.Rename(at("_backup/ghcr.io"), at("ghcr.io")))
	expect()
	n.write("certs.d/ghcr.io/hosts.toml", "server = \"https://ghcr.io\"\n") // as Dragonfly does
	expect(file)
	n.ok(os.RemoveAll(at("ghcr.io")))
	n.write("certs.d/ghcr.io/hosts.toml", ours)
	expect()
	n.ok(os.Remove(file))
	n.ok(os.Mkdir(file, 0o755))
	expect(file)
	n.ok(os.Remove(file))
	n.write("certs.d/ghcr.io/hosts.toml", ours)
	expect()
	certs := n.at("certs.d")
	time.Sleep(3 * debounce) // no earlier event is left, so that the move must be one
	n.ok(os.Rename(certs, certs+".bak"))
	n.ok(os.Mkdir(certs, 0o755))
	expect(file)
	n.ok(os.RemoveAll(dropIns)) // setup opens it
	expect()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
