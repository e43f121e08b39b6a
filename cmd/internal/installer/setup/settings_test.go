package setup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestSettings reads settings files, removes those that are no longer wanted, and applies them
// before they are on the host.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSettings(dir); err == nil {
		t.Error("an empty directory: no error")
	}
	for name, text := range map[string]string{"10-a.toml": "version = 1\n[gc]\nquota = \"1GiB\"\n", "20-b.toml": "version = 1\n[gc]\nquota = \"2GiB\"\n", "no": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := ReadSettings(dir)
	if err != nil || len(wanted) != 2 {
		t.Fatalf("%v, %v", wanted, err)
	}
	old := &record{Options: Options{Settings: map[string]string{"20-b.toml": "old", "30-c.toml": "old"}}}
	settled := old.withEmptied(wanted)
	want := map[string]string{"10-a.toml": wanted["10-a.toml"], "20-b.toml": wanted["20-b.toml"], "30-c.toml": noSettings}
	if d := cmp.Diff(want, settled); d != "" {
		t.Errorf("settled (-want +got):\n%s", d)
	}
	if d := cmp.Diff(wanted, (*record)(nil).withEmptied(wanted)); d != "" {
		t.Errorf("without a record (-want +got):\n%s", d)
	}

	host := t.TempDir()
	if err := os.Mkdir(filepath.Join(host, "conf.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"30-c.toml": "version = 1\n[gc]\nquota = \"3GiB\"\n", "15-own.toml": "version = 1\n[gc]\nlow = \"70%\"\n"} {
		if err := os.WriteFile(filepath.Join(host, "conf.d", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := config.LoadHost(filepath.Join(host, "config.toml"), settled)
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(c.GC.Quota); got != 2<<30 {
		t.Errorf("quota: got %d, want that of the last file that says one", got)
	}
	if _, err := config.LoadHost(filepath.Join(host, "config.toml"), map[string]string{"x.toml": "wrong"}); err == nil {
		t.Error("a file that cannot be read: no error")
	}
}

// TestFixHasTheRecordedChoices repairs a node that was set up with settings of its own and as another distribution: it
// is as it should be, so there is nothing to do.
func TestFixHasTheRecordedChoices(t *testing.T) {
	r := newRoot(t, "default")
	r.keys()
	r.ok(os.Chmod(filepath.Join(r.dir, "var/lib/ballast"), 0o700))
	r.set(Options{
		Distro: node.EKS, Registries: []string{"ghcr.io"},
		Settings: map[string]string{"10-tests.toml": "version = 1\n[facade]\nlisten = \"127.0.0.1:6000\"\n"},
	})
	fix, err := NewFix(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	if fix.Distro != node.EKS || fix.Changes() {
		t.Errorf("on %s: %s", fix.Distro, list(fix.Steps))
	}
}

// TestSettingsOfSetup refuses settings files with the names of files that setup writes itself.
func TestSettingsOfSetup(t *testing.T) {
	for _, p := range []string{ownConfig, closedConfig} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(p)), []byte(noSettings), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadSettings(dir)
		wantError(t, err, errdefs.IsInvalidArgument, "leave "+dir, "setup writes "+p+" itself")
	}
}
