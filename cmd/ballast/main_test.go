package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// ballast runs a command line without a daemon and without the configuration of this machine.
func ballast(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 1\nroot = %q\naddress = %q\nadmin_address = %q\n", dir+"/root", dir+"/d.sock", dir+"/a.sock")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BALLAST_CONFIG", file)
	t.Setenv("BALLAST_ADMIN", "")
	var out, err strings.Builder
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"fly"}, {"ls", "x"}, {"ls", "--fly"}, {"ls", "-o", "yaml"}, {"prefetch"}, {"prefetch", "llama3.2"},
		{"prefetch", "ghcr.io/a/b:v1", "--ttl", "-1s"}, {"prefetch", "ghcr.io/a/b:v1", "--ttl", "soon"},
		{"inspect"}, {"inspect", "--remote", "llama3.2"}, {"rm"}, {"unpin"}, {"pin", "x", "--ttl", "-1s"},
		{"gc", "--keep", "5x"}, {"config", "fly"}, {"config", "hosts"}, {"config", "hosts", "a/b"},
		{"config", "hosts", "ghcr.io", "--open"}, {"config", "containerd", "--root", "x"}, {"config", "containerd", "--containerd-version", "two"},
		{"config", "containerd", "--containerd-version", "1.6"}, {"doctor", "--containerd-version", "two"},
		{"config", "containerd", "--runtime-handler", "A B"}, {"config", "containerd", "--runtime-handler", "m", "--snapshotter-only"},
	} {
		code, stdout, stderr := ballast(t, args...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "ballast: ") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	for _, args := range [][]string{
		{"ls"}, {"df"}, {"gc", "--yes"}, {"verify"}, {"pin", "ls"}, {"rm", "ghcr.io/a/b:v1"}, {"inspect", "ghcr.io/a/b:v1"}, {"prefetch", "ghcr.io/a/b:v1"},
	} {
		code, _, stderr := ballast(t, args...)
		if code != exitNetwork || !strings.Contains(stderr, "ballastd is not running") {
			t.Errorf("%q: code %d, stderr %q", args, code, stderr)
		}
	}
	code, stdout, _ := ballast(t, "version")
	if code != 0 || !strings.Contains(stdout, "ballastd is not running") {
		t.Errorf("version: code %d, stdout %q", code, stdout)
	}
}

func TestExitCodes(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	noDir := os.Mkdir("main_test.go/x", 0o700)
	if !errors.Is(noDir, syscall.ENOTDIR) {
		t.Fatal(noDir)
	}
	for _, tt := range []struct {
		err  error
		ctx  context.Context
		want int
	}{
		{nil, t.Context(), 0},
		{errors.New("x"), t.Context(), 1},
		{noDir, t.Context(), 1},
		{errSilent, t.Context(), 1},
		{usage("x"), t.Context(), 2},
		{errdefs.ErrNotFound, t.Context(), 3},
		{errdefs.ErrUnauthenticated, t.Context(), 4},
		{errdefs.ErrPermissionDenied, t.Context(), 4},
		{&verify.Error{}, t.Context(), 5},
		{errdefs.ErrResourceExhausted, t.Context(), 6},
		{errdefs.ErrUnavailable, t.Context(), 7},
		{context.DeadlineExceeded, t.Context(), 7},
		{errdefs.ErrNotImplemented, t.Context(), 8},
		{errdefs.ErrAborted, t.Context(), 9},
		{errdefs.ErrInvalidArgument, t.Context(), 10},
		{errdefs.ErrFailedPrecondition, t.Context(), 11},
		{errdefs.ErrAlreadyExists, t.Context(), 12},
		{context.Canceled, stopped, 130},
	} {
		err := tt.err
		if err != nil {
			err = fmt.Errorf("prefetch: %w", err)
		}
		if got := exitCode(tt.ctx, err); got != tt.want {
			t.Errorf("%v: got %d, want %d", tt.err, got, tt.want)
		}
		if err == nil || tt.want == 2 || tt.want == 130 {
			continue
		}
		if got := exitCode(tt.ctx, wire.Wrap(err)); got != tt.want {
			t.Errorf("%v over the socket: got %d, want %d", tt.err, got, tt.want)
		}
	}
}

// TestExitCodesDocumented finds every code in the package documentation and in the reference of the commands.
func TestExitCodesDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../contrib/docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, codes, _ := strings.Cut(string(page), "## Exit codes")
	for _, code := range append(slices.Collect(maps.Values(exits)), 0, exitError, exitUsage, exitInterrupted) {
		if !strings.Contains(string(doc), fmt.Sprintf("\n//\t%3d  ", code)) {
			t.Errorf("doc.go does not say what %d is", code)
		}
		if !strings.Contains(codes, fmt.Sprintf("\n| %d |", code)) {
			t.Errorf("commands.md does not say what %d is", code)
		}
	}
}

// TestFirstErrorDecidesExitCode prints the errors in the order of the names, and ends with the code of the first.
func TestFirstErrorDecidesExitCode(t *testing.T) {
	var out strings.Builder
	a := &app{stderr: &out}
	fails := map[string]error{"b": errdefs.ErrNotFound, "c": errdefs.ErrDataLoss}
	err := each(a, []string{"a", "b", "c"}, func(name string) error {
		if fails[name] == nil {
			return nil
		}
		return fmt.Errorf("model %s: %w", name, fails[name])
	})
	a.say(t.Context(), nil, err)
	if got, want := out.String(), "ballast: model b: not found\nballast: model c\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if code := exitCode(t.Context(), err); code != exitNotFound {
		t.Errorf("code %d, want %d", code, exitNotFound)
	}
}

func TestReferences(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte("# models\n\n  ghcr.io/a/b:v1  \noci://docker.io/ai/smollm2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := &app{stdout: io.Discard, stderr: io.Discard}
	got, err := references(a.root(), []string{"localhost:5000/x:y", "4a5f09c2d1be"}, list, parseWanted)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(got), "[localhost:5000/x:y 4a5f09c2d1be ghcr.io/a/b:v1 docker.io/ai/smollm2:latest]"; got != want {
		t.Errorf("references: got %s, want %s", got, want)
	}
}

func TestConfigHostsWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ghcr.io", "hosts.toml")
	_, want, _ := ballast(t, "config", "hosts", "ghcr.io", "--root", dir)
	args := []string{"config", "hosts", "ghcr.io", "--root", dir, "--write", "--hosts-dir", dir}
	for range 2 { // idempotent
		if code, _, stderr := ballast(t, args...); code != 0 {
			t.Fatalf("code %d: %s", code, stderr)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want || want == "" {
			t.Fatalf("file: %q, %v, want %q", got, err, want)
		}
	}
	if err := os.WriteFile(path, []byte("server = \"https://mine\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := ballast(t, args...); code != exitExists || !strings.Contains(stderr, "--force") {
		t.Errorf("a file that is different: code %d, stderr %q", code, stderr)
	}
	if got, _ := os.ReadFile(path); string(got) != "server = \"https://mine\"\n" {
		t.Errorf("a file that is different was replaced: %q", got)
	}
	if code, _, stderr := ballast(t, append(args, "--force")...); code != 0 {
		t.Errorf("--force: code %d, stderr %q", code, stderr)
	}
	if got, _ := os.ReadFile(path); string(got) != want {
		t.Errorf("after --force: %q", got)
	}
}

// TestConfigHostsPlainHTTP writes the hosts.toml of a registry with plain HTTP again, as doctor says: it stays one,
// unless the command line says otherwise.
func TestConfigHostsPlainHTTP(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "localhost:5000", "hosts.toml")
	for _, tt := range []struct{ old, flag, want string }{
		{"server = \"http://localhost:5000\"\n", "--force", "http"},
		{"# ours\nserver = \"http://localhost:5000\"\n", "--force", "http"},
		{"# ours\nserver = \"http://localhost:5000\"\n", "--plain-http=false", "https"},
		{"server = \"https://localhost:5000\"\n", "--force", "https"},
		{"server = \"https://localhost:5000\"\n", "--plain-http", "http"},
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(tt.old), 0o644)); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := ballast(t, "config", "hosts", "localhost:5000", "--root", dir, "--write", "--hosts-dir", dir, "--force", tt.flag); code != 0 {
			t.Fatalf("code %d: %s", code, stderr)
		}
		if got, err := os.ReadFile(path); err != nil || !strings.Contains(string(got), "\nserver = \""+tt.want+"://localhost:5000\"\n") {
			t.Errorf("%s after %q: %v, no %s in:\n%s", tt.flag, tt.old, err, tt.want, got)
		}
	}
}

// TestConfigHostsFacade checks that --facade counts, and not the configuration.
func TestConfigHostsFacade(t *testing.T) {
	for flag, want := range map[string]string{"127.0.0.1:6000": "127.0.0.1:6000", "0.0.0.0:6000": "127.0.0.1:6000", "": "127.0.0.1:5757", "nonsense": ""} {
		code, stdout, stderr := ballast(t, "config", "hosts", "ghcr.io", "--facade", flag)
		if want == "" {
			if code != exitUsage || !strings.Contains(stderr, "--facade: ") {
				t.Errorf("%q: code %d, stderr %q", flag, code, stderr)
			}
			continue
		}
		if code != 0 || !strings.Contains(stdout, "//"+want) {
			t.Errorf("%q: code %d, stderr %q, no %s in:\n%s", flag, code, stderr, want, stdout)
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	code, stdout, _ := ballast(t, "doctor", "-o", "json", "--containerd-config", filepath.Join(t.TempDir(), "none.toml"))
	var findings []struct{ Check, Status, Message, Fix string }
	if err := json.Unmarshal([]byte(stdout), &findings); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if code != 1 || len(findings) < 1 || findings[0].Check != "daemon" || findings[0].Status != "fail" {
		t.Errorf("code %d, findings %+v", code, findings)
	}
}

func TestCompletion(t *testing.T) {
	if code, stdout, stderr := ballast(t, "completion", "bash"); code != 0 || !strings.Contains(stdout, "ballast") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
}

// TestLongTTL: the longest time is not shorter than others.
func TestLongTTL(t *testing.T) {
	for _, s := range []string{"15251w", "30501w", "32767w"} {
		var d ttl
		if err := d.Set(s); err != nil || time.Duration(d) < 200*365*24*time.Hour {
			t.Errorf("%s is %v, %v", s, time.Duration(d), err)
		}
	}
}
