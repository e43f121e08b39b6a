package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
)

func ballastd(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("BALLAST_CONFIG", "")
	ctx, stop := context.WithCancel(t.Context())
	stop() // the daemon stops at once
	var out, err strings.Builder
	code = run(ctx, args, &out, &err)
	return code, out.String(), err.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigDefault(t *testing.T) {
	var want strings.Builder
	if err := config.Default().Write(&want); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := ballastd(t, "config", "default"); code != 0 || stdout != want.String() {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestConfigDump prints the configuration in effect, in a form that can be read back.
func TestConfigDump(t *testing.T) {
	path := write(t, "version = 1\n[fetch]\nconnections = 3\n")
	code, stdout, stderr := ballastd(t, "config", "dump", "--config", path)
	if code != 0 || !strings.Contains(stdout, "\nconnections = 3\n") || !strings.HasPrefix(stdout, "# read: "+path+"\n") {
		t.Fatalf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if again := write(t, stdout); again != "" {
		c, err := config.Load(again)
		if err != nil || c.Fetch.Connections != 3 {
			t.Errorf("read back: %+v, %v", c, err)
		}
	}
}

func TestVersion(t *testing.T) {
	if code, stdout, _ := ballastd(t, "version"); code != 0 || !strings.HasPrefix(stdout, "ballastd ") || !strings.Contains(stdout, " go1.") {
		t.Errorf("code %d, stdout %q", code, stdout)
	}
}

func TestWrongCommandLine(t *testing.T) {
	for name, args := range map[string][]string{
		"argument":    {"x"},
		"flag":        {"--fly"},
		"no file":     {"--config", filepath.Join(t.TempDir(), "none")},
		"unknown key": {"--config", write(t, "version = 1\nfly = true\n")},
		"dump":        {"config", "dump", "--config", write(t, "version = 1\nfly = true\n")},
	} {
		if code, stdout, stderr := ballastd(t, args...); code != 2 || stdout != "" || !strings.HasPrefix(stderr, "ballastd: ") || strings.HasSuffix(stderr, ": invalid argument\n") {
			t.Errorf("%s: code %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
	file := write(t, "")
	path := write(t, "version = 1\nroot = \""+file+"\"\naddress = \"/nowhere/a\"\nadmin_address = \"/nowhere/b\"\n")
	if code, _, stderr := ballastd(t, "--config", path); code != 1 || !strings.Contains(stderr, "is not a directory") {
		t.Errorf("root is a file: code %d, stderr %q", code, stderr)
	}
}
