package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// An error about the command line has the usage line, and no message ends in the name of a
// category.
func TestUsageLine(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"rm"}, []string{"no model given", "usage: ballast rm REF|DIGEST..."}},
		{[]string{"unpin"}, []string{"no model given"}},
		{[]string{"prefetch"}, []string{"no model given"}},
		{[]string{"inspect"}, []string{"no model given"}},
		{[]string{"digest", "a.b/c", "a.b/d"}, []string{"one model expected, got 2"}},
		{[]string{"inspect", "--origin", "config", "ghcr.io/a/b"}, []string{"write --origin=config"}},
		{[]string{"convert"}, []string{"no model given", "usage: ballast convert SRC [DST]"}},
		{[]string{"convert", "ghcr.io/a/b:v1"}, []string{"no target given"}},
		{[]string{"gc", "--keep", "5"}, []string{`size "5" has no unit: 5GB?`}},
		{[]string{"inspect", "sha256:abc"}, []string{`"sha256:abc" is not a digest: after sha256: come 6 to 64 digits`}},
		{[]string{"inspect", "Bad Ref"}, []string{`"Bad Ref" is not a reference: REGISTRY/REPOSITORY[:TAG][@DIGEST], in lower case`}},
		{[]string{"prefetch", "llama3.2"}, []string{"write for example registry.ollama.ai/library/llama3.2 or docker.io/ai/llama3.2"}},
		{[]string{"prefetch", "ai/smollm2:360M"}, []string{"write for example docker.io/ai/smollm2:360M or ghcr.io/ai/smollm2:360M"}},
		{[]string{"rm", "llama"}, []string{`"llama" does not name a registry`, "usage: ballast rm REF|DIGEST... [flags]\n"}},
		{[]string{"inspect", "llama"}, []string{"usage: ballast inspect REF|DIGEST"}},
		{[]string{"unpin", "llama"}, []string{"usage: ballast unpin "}},
		{[]string{"pin", "llama"}, []string{"usage: ballast pin "}},
		{[]string{"verify", "llama"}, []string{"usage: ballast verify "}},
		{[]string{"pin", "--ttl", "1h"}, []string{"no model given", "usage: ballast pin REF|DIGEST... [flags]\n"}},
		{[]string{"mount"}, []string{`"ballast mount ls" lists mounts`, "usage: ballast mount REF|DIGEST DIR [flags]\n"}},
		{[]string{"ls", "-o", "yaml"}, []string{"usage: ballast ls [flags]\n"}},
		{[]string{"config", "hosts", "a/b"}, []string{"usage: ballast config hosts REGISTRY"}},
		{[]string{"config", "containerd", "--like", "x"}, []string{"--runtime-handler"}},
		{[]string{"help", "nothing"}, []string{`there is no command "nothing"`}},
		{[]string{"help", "ls", "x"}, []string{`there is no command "x"`}},
		{[]string{"--config", "/nowhere/c.toml", "ls"}, []string{"--config: ", "/nowhere/c.toml", "no such file"}},
		{[]string{"prefetch", "--file", "/nowhere/list"}, []string{"/nowhere/list", "usage: ballast prefetch REF|DIGEST..."}},
	} {
		code, stdout, stderr := ballast(t, tt.args...)
		if code != exitUsage || stdout != "" {
			t.Errorf("%q: code %d, stdout %q", tt.args, code, stdout)
		}
		for _, w := range tt.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%q: no %q in %q", tt.args, w, stderr)
			}
		}
		if strings.Contains(stderr, ": invalid argument\n") {
			t.Errorf("%q: a category in %q", tt.args, stderr)
		}
	}
}

// TestOwnTexts gives every command flags and arguments that it does not take: what users read is not the text of the
// library that reads the command line.
func TestOwnTexts(t *testing.T) {
	theirs := regexp.MustCompile(`unknown (command|flag|shorthand)|shorthand flag|requires at least|accepts |flag needs an argument|invalid argument|strconv|if any flags in the group`)
	refused := func(args ...string) {
		t.Helper()
		if code, _, stderr := ballast(t, args...); code != exitUsage || theirs.MatchString(stderr) {
			t.Errorf("%q: code %d, %q", args, code, stderr)
		}
	}
	n := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" {
				visit(sub)
			}
		}
		path := strings.Fields(c.CommandPath())[1:]
		refused(append(path, "--teleport")...)
		refused(append(path, "-~")...)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			switch f.Value.Type() {
			case "bool":
				refused(append(path, "--"+f.Name+"=perhaps")...)
			case "int", "int64", "duration":
				refused(append(path, "--"+f.Name, "perhaps")...)
				fallthrough
			default:
				if f.NoOptDefVal == "" {
					refused(append(path, "--"+f.Name)...)
				}
			}
		})
		if c.Args == nil {
			return
		}
		for _, args := range [][]string{nil, strings.Fields("a b c d e f")} {
			if err := c.Args(c, args); err != nil && theirs.MatchString(wire.Text(err)) {
				t.Errorf("%s with %d arguments: %v", c.CommandPath(), len(args), err)
			}
		}
	}
	visit((&app{stdout: io.Discard, stderr: io.Discard}).root())
	if n < 100 {
		t.Errorf("%d flags", n)
	}
}

// Warnings and notes have prefixes, and cannot control the terminal.
func TestWarningsHavePrefixes(t *testing.T) {
	var out strings.Builder
	a := &app{stderr: &out}
	a.warn("left alone: %s", "a\x1b[2J")
	a.note("it is %d:\n\tx\r", 1)
	if got, want := out.String(), "ballast: warning: left alone: a\ufffd[2J\nballast: note: it is 1:\n\tx\ufffd\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, _, stderr := ballast(t, "lss"); !strings.Contains(stderr, `"lss": did you mean ls?`) {
		t.Errorf("a suggestion: %q", stderr)
	}
}

// TestPrintable: no name controls the terminal, or looks like another one because of what cannot be seen.
func TestPrintable(t *testing.T) {
	for _, r := range []rune{
		0x00, 0x07, '\n', 0x1b, 0x7f, 0x9b, // controls
		0xad, 0x061c, 0x200b, 0x200d, 0x200e, 0x202e, 0x2060, 0x2066, 0xfeff, 0xe0041, // format
		0x00a0, 0x2003, 0x2028, 0x3000, // blanks other than the space
		0x034f, 0x115f, 0x2800, 0x3164, 0xffa0, 0xfe0f, 0xe0100, // invisible letters, marks and variations
		0xe000, 0x10ffff, // private, no character
	} {
		if got := printable("a" + string(r) + "b"); got != "a\ufffdb" {
			t.Errorf("%U is printed as %q", r, got)
		}
	}
	for _, s := range []string{"model-00001-of-00002.safetensors", "a b", "模型.gguf", "größe", "e\u0301", "नमूना", "🤗"} {
		if got := printable(s); got != s {
			t.Errorf("%q is printed as %q", s, got)
		}
	}
}

// TestSecondSignal checks that Ctrl-C ends a command that waits where it cannot be cancelled: in the
// opening of a pipe.
func TestSecondSignal(t *testing.T) {
	const key = "BALLAST_TEST_PIPE"
	if pipe := os.Getenv(key); pipe != "" {
		os.Args = []string{"ballast", "convert", "./model", "oci:out", "--sign", pipe}
		main()
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// A shell starts what runs in the background with SIGINT ignored.
	cmd := exec.Command("env", "--default-signal=INT", os.Args[0], "-test.run=^TestSecondSignal$")
	cmd.Env = append(os.Environ(), key+"="+pipe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case <-ended:
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGINT {
				t.Errorf("it ended by itself: %v", cmd.ProcessState)
			}
			return
		case <-limit:
			t.Fatal("it does not end")
		case <-time.After(100 * time.Millisecond):
			if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--version"}, "ballast version " + wire.ThisVersion().Version},
		{[]string{"help"}, "prefetch"},
		{[]string{"help", "config", "hosts"}, "ballast config hosts REGISTRY"},
		{[]string{"help", "ls"}, "--output"},
	} {
		if code, stdout, stderr := ballast(t, tt.args...); code != 0 || !strings.Contains(stdout, tt.want) {
			t.Errorf("%q: code %d, %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
}

// TestPrintedErrors checks what is printed for an error.
func TestPrintedErrors(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{t.Context(), nil, ""},
		{t.Context(), errSilent, ""},
		{t.Context(), &saidError{errors.New("x")}, ""},
		{t.Context(), errors.New("x\x1b[2J\ny"), "ballast: x\ufffd[2J\ny\n"},
		{t.Context(), context.Canceled, "ballast: context canceled\n"},
		{stopped, fmt.Errorf("ls: %w", context.Canceled), ""},
		{stopped, errors.New("x"), "ballast: x\n"},
	} {
		var b strings.Builder
		a := &app{stderr: &b}
		a.say(tt.ctx, a.root(), tt.err)
		if got := b.String(); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestReferenceListErrors(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte("# models\n\nghcr.io/a/b:v1\nllama\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := ballast(t, "prefetch", "--file", list); code != exitUsage || !strings.Contains(stderr, list+`:4: reference "llama"`) {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
}

// A file that cannot be read is a finding and does not end the checks.
func TestDoctorConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("version = 1\nfly = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ballast(t, "--config", path, "--address", "/nowhere/admin.sock", "doctor", "--containerd-config", "/nowhere/c.toml")
	if code != 1 || !strings.HasPrefix(stdout, "FAIL  config: "+path+`:2: unknown key "fly"`) || !strings.Contains(stdout, "FAIL  daemon: ") {
		t.Errorf("code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
	if code, _, stderr := ballast(t, "--config", path, "ls"); code != exitUsage || strings.Contains(stderr, "usage:") || !strings.Contains(stderr, `unknown key "fly"`) {
		t.Errorf("ls: code %d, stderr %q", code, stderr)
	}
}

// TestDoctorInterrupted: what doctor finds after Ctrl-C is not printed.
func TestDoctorInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr strings.Builder
	if code := run(ctx, []string{"doctor", "--address", "/nowhere/admin.sock", "--containerd-config", "/nowhere/c.toml"}, &stdout, &stderr); code == 1 || stdout.String()+stderr.String() != "" {
		t.Errorf("code %d, %q, %q", code, stdout.String(), stderr.String())
	}
}

// TestTouchProcess has the disk of a directory refuse writes: the other process says why.
func TestTouchProcess(t *testing.T) {
	dir := t.TempDir()
	if err := touch(dir); err != nil {
		t.Error(err)
	}
	if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := touch(dir); err == nil || !strings.Contains(err.Error(), unix.EROFS.Error()) {
		t.Errorf("got %v, want %v", err, unix.EROFS)
	}
}

// complete returns the completions of a shell.
func (s *site) complete(t *testing.T, args ...string) []string {
	t.Helper()
	out := s.ok(t, append([]string{"__complete", "--config", s.config}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[:len(lines)-1] // the last is a directive
}

// TestModelsInOutputAndCompletion checks how commands and completion show models on a node.
func TestModelsInOutputAndCompletion(t *testing.T) {
	s := newSite(t)
	one, two := s.add("one", 21, 1<<20), s.add("two", 22, 1<<20)
	s.ok(t, "prefetch", one, two)
	s.ok(t, "unpin", two)
	if got := s.ok(t, "-q", "pin", "ls"); got != one+"\n" {
		t.Errorf("-q pin: %q", got)
	}
	for _, tt := range []struct {
		args, want []string
	}{
		{[]string{"inspect", ""}, []string{one, two}},
		{[]string{"inspect", one, ""}, []string{}},
		{[]string{"rm", one, ""}, []string{two}},
		{[]string{"unpin", ""}, []string{one}},
		{[]string{"ls", "-o", ""}, []string{"table", "json"}},
		{[]string{"convert", "--as", ""}, []string{"ballast", "modelpack", "cnai", "image", "carton"}},
		{[]string{"convert", "--compress", ""}, []string{"zstd-seekable", "zstd-chunked"}},
	} {
		got := s.complete(t, tt.args...)
		if len(got) == 0 {
			got = []string{}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("completion of %q: got %q, want %q", tt.args, got, tt.want)
		}
	}
	if code, _, stderr := s.ballast(t.Context(), "prefetch", s.Host()+"/none:v1"); code != exitNotFound || strings.Count(stderr, "ballast: ") != 1 ||
		strings.Contains(stderr, s.Host()+"/none:v1: "+s.Host()+"/none:v1: ") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	s.stop()
	if got := s.complete(t, "inspect", ""); len(got) != 0 {
		t.Errorf("completion without a daemon: %q", got)
	}
}

// A digest that does not work everywhere is noted.
func TestOriginDigest(t *testing.T) {
	s := newSite(t)
	s.add("team/model", 23, 1<<20)
	name := s.Host() + "/team/model@"
	origin := name + s.models["team/model"].Digest().String()
	code, stdout, stderr := s.ballast(t.Context(), "prefetch", origin)
	converted := parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json"))[0].Manifest
	if code != 0 || !strings.Contains(stdout, shortDigest(converted.String())) || !strings.Contains(stderr, "the digest in "+origin+" is that of the model as its registry has it") ||
		!strings.Contains(stderr, name+converted.String()) {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if _, _, stderr := s.ballast(t.Context(), "prefetch", s.Host()+"/team/model:v1"); strings.Contains(stderr, "as its registry has it") {
		t.Errorf("by tag: %q", stderr)
	}
}

// TestMovedPin moves a tag after it was pinned: the pin protects the same model as before, and the
// output shows it.
func TestMovedPin(t *testing.T) {
	s := newSite(t)
	ref, other := s.add("team/model", 41, 1<<20), s.add("team/other", 42, 2<<20)
	s.ok(t, "prefetch", ref, other)
	s.ok(t, "unpin", other)
	old := parse[[]wire.Pin](t, s.ok(t, "pin", "ls", "-o", "json"))
	s.Add("team/model", "v1", s.models["team/other"])
	s.ok(t, "prefetch", "--no-pin", ref)
	pins := parse[[]wire.Pin](t, s.ok(t, "pin", "ls", "-o", "json"))
	if len(pins) != 1 || pins[0].Digest != old[0].Digest || old[0].Moved != "" || pins[0].Moved == "" || pins[0].Moved == pins[0].Digest {
		t.Fatalf("pins %+v, before %+v", pins, old)
	}
	before, now := shortDigest(pins[0].Digest.String()), shortDigest(pins[0].Moved.String())
	if got, want := s.ok(t, "pin", "ls"), before+" (moved: the name now is "+now+")"; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q in it", got, want)
	}
	for line := range strings.Lines(s.ok(t, "ls")) {
		if want := "pinned as " + ref; strings.Contains(line, before) != strings.Contains(line, want) || strings.Contains(line, now) && strings.Contains(line, "pinned") {
			t.Errorf("of %s %q, of %s nothing is pinned: %q", before, want, now, line)
		}
	}
	if got, want := s.ok(t, "inspect", now), "Reference:      "+ref+"\nReference:"; !strings.HasPrefix(got, "Reference:") || strings.Count(got, "Reference:") != 2 {
		t.Errorf("got\n%s\nwant lines like %q", got, want)
	}
	if s.ok(t, "prefetch", ref); strings.Contains(s.ok(t, "pin", "ls"), "moved") {
		t.Error("a prefetch did not move the pin after its name")
	}
}

// The saved space is what separate files of the models would use in addition.
func TestSavedSpace(t *testing.T) {
	rows := usageRows(wire.Usage{Logical: 5e9, Unique: 3_100_000_000, Saved: 2e9, Objects: 7})
	var got []string
	for _, r := range rows[:4] {
		got = append(got, r[0]+" "+r[1])
	}
	if want := []string{"LOGICAL 5.0 GB", "SAVED 2.0 GB", "UNIQUE 3.0 GB", "OTHER 100 MB"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A repair does not reach open files, and the exit code reports a damaged model that cannot be
// repaired.
func TestRepairMessages(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 24, 1<<20)
	s.ok(t, "prefetch", ref)
	path := filepath.Join(s.dir, "root", "objects", store.ObjectName(digest.FromBytes(s.models["team/model"].Files["model.gguf"].Data)))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := s.ballast(t.Context(), "verify")
	if code != exitVerify || !strings.Contains(stdout, "  missing\n") || strings.Contains(stderr, "verifying  verifying") || strings.Contains(stderr, ": data loss") {
		t.Errorf("verify: code %d, %q, %q", code, stdout, stderr)
	}
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.NotFound(w, r)
			return true
		}
		return false
	})
	if code, _, stderr := s.ballast(t.Context(), "verify", "--repair"); code != exitNotFound || !strings.Contains(stderr, ref) || strings.Contains(stderr, "until they are restarted") {
		t.Errorf("repair without the registry: code %d, %q", code, stderr)
	}
	s.Before(nil)
	if code, stdout, stderr := s.ballast(t.Context(), "verify", "--repair"); code != 0 || !strings.Contains(stdout, "repaired "+ref) || !strings.Contains(stderr, "until they are restarted") {
		t.Errorf("repair: code %d, %q, %q", code, stdout, stderr)
	}
	s.ok(t, "verify")
}

// TestInvalidModel removes a document of a model: the model is listed with its error, and the other
// model as before.
func TestInvalidModel(t *testing.T) {
	s := newSite(t)
	bad, good := s.add("bad", 25, 1<<20), s.add("good", 26, 1<<20)
	s.ok(t, "prefetch", bad, good)
	var table digest.Digest
	for _, im := range parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json")) {
		if im.Refs[0] == bad {
			table = im.Table
		}
	}
	s.stop() // it has read the table
	if err := os.Remove(filepath.Join(s.dir, "root", "objects", store.ObjectName(table))); err != nil {
		t.Fatal(err)
	}
	s.start(t, 1)
	states := map[string]wire.ImageState{}
	for _, im := range parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json")) {
		states[im.Refs[0]] = im.State
		if (im.Error != nil) != (im.Refs[0] == bad) {
			t.Errorf("%v: error %v", im.Refs, im.Error)
		}
	}
	if states[bad] != wire.StateInvalid || states[good] != wire.StateComplete {
		t.Errorf("states: %v", states)
	}
	if out := s.ok(t, "ls"); !strings.Contains(out, "invalid, pinned") || !strings.Contains(out, " is invalid: ") || !strings.Contains(out, "complete, pinned") {
		t.Errorf("ls:\n%s", out)
	}
	if out := s.ok(t, "inspect", bad); !strings.Contains(out, "invalid, pinned") || !strings.Contains(out, "Error: ") || !strings.Contains(out, bad) {
		t.Errorf("inspect:\n%s", out)
	}
	if d := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", bad)); d.Error == nil || d.Error.Code == "" || d.Files == nil || d.Blobs == nil {
		t.Errorf("inspect -o json: %+v", d)
	}
	s.ok(t, "prefetch", bad) // as the error advises
	if out := s.ok(t, "ls"); strings.Contains(out, "invalid") {
		t.Errorf("ls after a prefetch:\n%s", out)
	}
}

// TestPullingState checks ls during a prefetch.
func TestPullingState(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 27, 9<<20)
	spoil, asked, open := stalled()
	s.Before(spoil)
	done := make(chan int, 1)
	go func() {
		code, _, _ := s.ballast(context.Background(), "prefetch", ref)
		done <- code
	}()
	<-asked
	if out := s.ok(t, "ls"); !strings.Contains(out, "pulling 0%") {
		t.Errorf("ls:\n%s", out)
	}
	close(open)
	if code := <-done; code != 0 {
		t.Errorf("prefetch: code %d", code)
	}
	if out := s.ok(t, "ls"); !strings.Contains(out, "complete, pinned") {
		t.Errorf("ls:\n%s", out)
	}
}
