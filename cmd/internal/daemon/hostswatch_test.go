package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/opencontainers/go-digest"
)

// A logged is the log of a daemon.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// writer returns a function that writes files below a directory.
func writer(t *testing.T, dir string) func(p, text string) {
	return func(p, text string) {
		t.Helper()
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// watching returns a daemon that watches the hosts.toml files of a configuration, and its log, until stop is called.
func watching(t *testing.T, c *config.Config) (d *Daemon, log *logged, stop func()) {
	t.Helper()
	log = new(logged)
	d = &Daemon{config: c, log: slog.New(slog.NewTextHandler(log, nil))}
	d.closed.Store(&c.Facade.Closed)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.watchHosts(ctx) }()
	return d, log, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestWatchHosts closes a registry while the daemon runs, and then has Spegel move its hosts.toml: the log names file,
// registry and program, also after a change that still leads to the facade. A configuration that cannot be read changes
// nothing.
func TestWatchHosts(t *testing.T) {
	dir := t.TempDir()
	write := writer(t, dir)
	write("ballast/config.toml", "version = 1\n")
	c, err := config.Load(filepath.Join(dir, "ballast/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	d, log, stop := watching(t, c)

	const hosts = "[host.\"https://127.0.0.1:5757\"]\n"
	file := filepath.Join(dir, "certs.d/ghcr.io/hosts.toml")
	write("certs.d/ghcr.io/hosts.toml", hosts)
	write("ballast/conf.d/00-closed.toml", fmt.Sprintf("version = 1\n[[facade.closed]]\nfile = %q\ndigest = %q\n", file, digest.FromString(hosts)))
	write("certs.d/_backup/README", "")
	if err := os.Rename(filepath.Dir(file), filepath.Join(dir, "certs.d/_backup/ghcr.io")); err != nil {
		t.Fatal(err)
	}
	says := func(words string) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(log.String(), words); {
			if time.Sleep(50 * time.Millisecond); time.Now().After(deadline) {
				t.Fatalf("no %q in %s", words, log)
			}
		}
	}
	// change writes the hosts.toml, and returns when the daemon has looked at it.
	change := func(text string) {
		t.Helper()
		write("certs.d/ghcr.io/hosts.toml", text)
		deadline, before := time.Now().Add(5*time.Minute), d.closed.Load()
		for lists := 0; lists < 2; time.Sleep(50 * time.Millisecond) { // the first look may have begun before the change
			write("ballast/conf.d/README", "") // another change
			if now := d.closed.Load(); now != before {
				before = now
				lists++
			}
			if time.Now().After(deadline) {
				t.Fatal("the daemon does not look")
			}
		}
	}
	says("file=" + file + " registry=ghcr.io by=Spegel")
	change(hosts)
	change("# mine\n" + hosts)
	write("ballast/conf.d/50-own.toml", "nonsense")
	says("cannot be read again")
	write("certs.d/ghcr.io/hosts.toml", "[host.\"http://127.0.0.1:4001\"]\n")
	says("file=" + file + " registry=ghcr.io by=Dragonfly")
	stop()
}

// TestHostsUnwatched has a list with a file that cannot be watched: files are compared, and the list is read, each
// minute.
func TestHostsUnwatched(t *testing.T) {
	dir := t.TempDir()
	write := writer(t, dir)
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	const table, hosts = "[[facade.closed]]\nfile = %q\ndigest = %q\n", "[host.\"https://127.0.0.1:5757\"]\n"
	closed := func(p string) string { return fmt.Sprintf(table, filepath.Join(dir, p), digest.FromString(hosts)) }
	write("certs.d/ghcr.io/hosts.toml", "[host.\"http://127.0.0.1:4001\"]\n")
	unwatched := "version = 1\n" + closed("loop/quay.io/hosts.toml")
	write("config.toml", unwatched)
	c, err := config.Load(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		d, log, stop := watching(t, c)
		time.Sleep(hostsEvery / 2)
		write("config.toml", unwatched+closed("certs.d/ghcr.io/hosts.toml"))
		time.Sleep(3 * hostsEvery)
		stop()
		if n := len(*d.closed.Load()); n != 2 {
			t.Errorf("%d files are listed, want 2", n)
		}
		for _, says := range []string{"too many levels of symbolic links", "registry=quay.io by=\"\"", "registry=ghcr.io by=Dragonfly"} {
			if n := strings.Count(log.String(), says); n != 1 {
				t.Errorf("%q %d times in %s", says, n, log)
			}
		}
	})
}
