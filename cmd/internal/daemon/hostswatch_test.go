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

// TestWatchHosts closes a registry while the daemon runs, and then has Spegel move its hosts.toml: the log names file,
// registry and program, also after a change that still leads to the facade. A configuration that cannot be read changes
// nothing.
func TestWatchHosts(t *testing.T) {
	dir := t.TempDir()
	write := func(p, text string) {
		t.Helper()
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("ballast/config.toml", "version = 1\n")
	c, err := config.Load(filepath.Join(dir, "ballast/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	log := new(logged)
	d := &Daemon{config: c, log: slog.New(slog.NewTextHandler(log, nil))}
	d.closed.Store(&c.Facade.Closed)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.watchHosts(ctx) }()

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
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
