package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/dustin/go-humanize"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// A site is a registry, and a daemon that downloads from it.
type site struct {
	*registrytest.Server
	models map[string]*converttest.Built // by repository; those of add

	dir     string
	config  string
	more    string   // of the configuration
	allow   []string // hosts that URLs may redirect to
	address string
	stop    func()
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Server: registrytest.New(t), models: map[string]*converttest.Built{}, dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "config.toml")
	s.address = filepath.Join(s.dir, "run/admin.sock")
	s.start(t, 1)
	return s
}

// start starts the daemon with a reserve of free space.
func (s *site) start(t *testing.T, reserve int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		t.Fatal(err)
	}
	facade := l.Addr().String()
	l.Close()
	text := fmt.Sprintf(`version = 1
root = %q
address = %q
admin_address = %q
[containerd]
address = %q
[facade]
listen = %q
[upstream]
hosts_dir = ""
docker_config = ""
stall_timeout = "2s"
allow_hosts = %s
[fetch]
reserve = "%dB"
[lazy]
holder = "none" # a holder is a copy of this program, which is the test
%s`, s.dir+"/root", s.dir+"/run/ballastd.sock", s.address, s.dir+"/containerd.sock", facade, strings.ReplaceAll(fmt.Sprintf("%q", s.allow), " ", ", "), reserve, s.more)
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(s.config)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("daemon: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(s.stop)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		c, err := net.Dial("unix", s.address)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// add puts a model with fresh weights into the registry and returns its reference.
func (s *site) add(repo string, seed uint64, size int) string {
	s.models[repo] = converttest.ModelPackRaw(converttest.Files(storetest.Random(seed, size)))
	return s.Add(repo, "v1", s.models[repo])
}

// ballast runs a command line.
func (s *site) ballast(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err strings.Builder
	code = run(ctx, append([]string{"--config", s.config, "--address", s.address}, args...), &out, &err)
	return code, out.String(), err.String()
}

// ok runs a command line that must succeed.
func (s *site) ok(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := s.ballast(t.Context(), args...)
	if code != 0 {
		t.Fatalf("ballast %s: code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

func parse[T any](t *testing.T, s string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v in %q", err, s)
	}
	return v
}

// TestJourney follows a model through its life on a node.
func TestJourney(t *testing.T) {
	s := newSite(t)
	const size = 5 << 20
	ref := s.add("team/model", 1, size)
	built := s.models["team/model"]

	// At first only the registry has it, and inspecting it downloads no weights.
	code, _, _ := s.ballast(t.Context(), "inspect", ref)
	if code != exitNotFound {
		t.Errorf("inspect before the fetch: code %d, want %d", code, exitNotFound)
	}
	remote := parse[wire.Detail](t, s.ok(t, "inspect", "--remote", "-o", "json", ref))
	if s.Sent() > 64<<10 {
		t.Errorf("inspect --remote: %d bytes of blobs were downloaded", s.Sent())
	}

	if out := s.ok(t, "pull", "--dry-run", ref); !strings.Contains(out, shortDigest(remote.Manifest.String())) || !strings.Contains(out, "absent") {
		t.Errorf("pull --dry-run: %q", out)
	}
	if s.Sent() > 64<<10 {
		t.Errorf("pull --dry-run: %d bytes of blobs were downloaded", s.Sent())
	}
	s.ok(t, "pull", ref)
	if pins := parse[[]wire.Pin](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 0 {
		t.Errorf("pins after a pull: %+v", pins)
	}
	s.ok(t, "rm", ref)
	s.ok(t, "gc", "--yes")

	lines := strings.Split(strings.TrimSpace(s.ok(t, "prefetch", "-o", "json", ref)), "\n")
	last := parse[wire.Event](t, lines[len(lines)-1])
	if last.Status != wire.StatusSuccess || last.Ref != ref || last.Image == nil || last.Image.Manifest != remote.Manifest {
		t.Errorf("last line: %+v, want the image %s", last, remote.Manifest)
	}
	sent := s.Sent()
	if out := s.ok(t, "prefetch", ref); !strings.Contains(out, ref) || s.Sent() != sent {
		t.Errorf("second prefetch: %d bytes, %q", s.Sent()-sent, out)
	}

	images := parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json"))
	if len(images) != 1 || images[0].State != wire.StateComplete || len(images[0].Pins) != 1 {
		t.Errorf("ls: %+v", images)
	}
	if out := s.ok(t, "ls"); !strings.Contains(out, ref) || !strings.Contains(out, "complete, pinned") {
		t.Errorf("ls:\n%s", out)
	}
	if out := s.ok(t, "ls", "--format", "{{.digest}} {{.size}} {{index .refs 0}}"); out != fmt.Sprintf("%s %d %s\n", images[0].Manifest, images[0].Size, ref) {
		t.Errorf("ls --format: got %q", out)
	}
	if code, _, stderr := s.ballast(t.Context(), "ls", "--format", "{{index .refs 99}}"); code != exitUsage || !strings.Contains(stderr, "out of range") {
		t.Errorf("ls --format with an index that is too large: code %d, %q", code, stderr)
	}
	if out := s.ok(t, "-q", "ls"); strings.TrimSpace(out) != remote.Manifest.String() {
		t.Errorf("ls -q: %q", out)
	}
	detail := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref))
	want := map[string]digest.Digest{}
	for p, f := range built.Files {
		want[p] = digest.FromBytes(f.Data)
	}
	got := map[string]digest.Digest{}
	for _, f := range detail.Files {
		if f.Type == filetable.TypeReg {
			got[f.Path] = f.Digest
		}
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("files (got, want):\n%s", diff)
	}
	if out := s.ok(t, "inspect", ref); !strings.Contains(out, "model.gguf") || !strings.Contains(out, built.Digest().String()) {
		t.Errorf("inspect:\n%s", out)
	}

	s.ok(t, "gc", "--yes")
	s.ok(t, "verify")
	u := parse[wire.Usage](t, s.ok(t, "df", "-o", "json"))
	if u.Unique < size || u.Reclaimable != 0 || u.Partial != 0 {
		t.Errorf("df: %+v", u)
	}
	v := parse[struct {
		wire.Usage
		Models []wire.Image `json:"models"`
	}](t, s.ok(t, "df", "-v", "-o", "json"))
	if v.Unique != u.Unique || len(v.Models) != 1 || v.Models[0].Share == nil || v.Models[0].Own != u.Unique || v.Models[0].Shared != 0 {
		t.Errorf("df -v: %+v, want one model that takes everything of %+v", v, u)
	}
	for _, args := range [][]string{{"df", "-v"}, {"ls", "--size"}} {
		if out := s.ok(t, args...); !strings.Contains(out, "OWN") || !strings.Contains(out, humanize.Bytes(uint64(u.Unique))) {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	s.ok(t, "df")
	s.ok(t, "unpin", ref)
	if out := s.ok(t, "gc", "--dry-run"); !strings.Contains(out, "would remove") || !strings.Contains(out, "\n  "+ref+"\n") {
		t.Errorf("gc --dry-run: %q", out)
	}
	s.ok(t, "pin", "--ttl", "1d", ref)
	if out := s.ok(t, "pin", "ls"); !strings.Contains(out, ref) || !strings.Contains(out, "in 24 hours") {
		t.Errorf("pin: %q", out)
	}
	if code, _, _ := s.ballast(t.Context(), "gc"); code != exitUsage {
		t.Errorf("gc without a terminal: code %d", code)
	}
	if out := s.ok(t, "rm", "--dry-run", ref); out != "would remove "+ref+" ("+shortDigest(remote.Manifest.String())+")\n" || !strings.Contains(s.ok(t, "ls"), "pinned (24 hours left)") {
		t.Errorf("rm --dry-run: %q", out)
	}
	s.ok(t, "rm", ref)
	s.ok(t, "gc", "--yes")
	if u = parse[wire.Usage](t, s.ok(t, "df", "-o", "json")); u.Unique != 0 {
		t.Errorf("df after rm and gc: %+v", u)
	}
}

// TestRepair repairs a damaged object on disk.
func TestRepair(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 2, 3<<20)
	s.ok(t, "prefetch", ref)
	weights := s.models["team/model"].Files["model.gguf"].Data
	path := filepath.Join(s.dir, "root", "objects", store.ObjectName(digest.FromBytes(weights)))
	if err := os.WriteFile(path, append(bytes.Clone(weights[:len(weights)-1]), weights[len(weights)-1]^1), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := s.ballast(t.Context(), "verify", ref)
	if code != exitVerify || !strings.Contains(stdout, digest.FromBytes(weights).String()) || !strings.Contains(stderr, "--repair") {
		t.Errorf("verify: code %d, %q, %q", code, stdout, stderr)
	}
	if out := s.ok(t, "verify", "--repair"); !strings.Contains(out, "repaired "+ref) {
		t.Errorf("verify --repair: %q", out)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, weights) {
		t.Errorf("object is not repaired: %v", err)
	}
	s.ok(t, "verify", ref)
}

// TestPrefetchFails checks the exit codes of failures.
func TestPrefetchFails(t *testing.T) {
	isBlob := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }
	for _, tt := range []struct {
		name  string
		spoil func(http.ResponseWriter, *http.Request) bool
		setup func(*testing.T, *site)
		ref   string // in place of the model's
		want  int
	}{
		{name: "no such tag", ref: "team/other:v1", want: exitNotFound},
		{name: "no blob", want: exitNotFound, spoil: func(w http.ResponseWriter, r *http.Request) bool {
			if isBlob(r) {
				http.NotFound(w, r)
			}
			return isBlob(r)
		}},
		{name: "login needed", want: exitUnauthorised, spoil: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}},
		{name: "wrong bytes", want: exitVerify, setup: func(_ *testing.T, s *site) {
			m := s.models["team/model"]
			d := digest.FromBytes(m.Files["model.gguf"].Data)
			s.Serve("/v2/team/model/blobs/"+d.String(), bytes.Repeat([]byte{1}, len(m.Blobs[d])))
		}},
		{name: "no space", want: exitSpace, setup: func(t *testing.T, s *site) {
			s.stop()
			s.start(t, math.MaxInt64/2)
		}},
		{name: "registry down", want: exitNetwork, setup: func(_ *testing.T, s *site) { s.Close() }},
		{name: "image", want: exitUnsupported, setup: func(_ *testing.T, s *site) {
			s.Put("team/model", "v1", []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
				`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+string(digest.FromString("c"))+`","size":2},"layers":[]}`), mediatype.OCIManifest)
		}},
		{name: "invalid", want: exitInvalid, setup: func(_ *testing.T, s *site) {
			m := s.models["team/model"]
			s.Put("team/model", "v1", bytes.ReplaceAll(m.Manifest, []byte(`"digest":"sha256:`), []byte(`"digest":"sha256:x`)), m.MediaType)
		}},
		{name: "format of others", want: exitUnsupported, setup: func(_ *testing.T, s *site) {
			s.Put("team/model", "v1", []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
				`"config":{"mediaType":"application/vnd.kitops.modelkit.config.v2+json","digest":"`+string(digest.FromString("c"))+`","size":2},"layers":[]}`), mediatype.OCIManifest)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			ref := s.add("team/model", 3, 3<<20)
			if tt.ref != "" {
				ref = s.Host() + "/" + tt.ref
			}
			if tt.setup != nil {
				tt.setup(t, s)
			}
			s.Before(tt.spoil)
			code, stdout, stderr := s.ballast(t.Context(), "prefetch", ref)
			if code != tt.want || stdout != "" || !strings.Contains(stderr, "ballast: "+ref+": ") {
				t.Errorf("code %d, want %d; stdout %q, stderr %q", code, tt.want, stdout, stderr)
			}
			code, stdout, _ = s.ballast(t.Context(), "prefetch", "-o", "json", ref)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			if last := parse[wire.Event](t, lines[len(lines)-1]); code != tt.want || last.Status != wire.StatusError || last.Error == nil {
				t.Errorf("json: code %d, last line %+v", code, last)
			}
			if pins := parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 0 {
				t.Errorf("pins: %+v", pins)
			}
		})
	}
}

// stalled returns a spoil that delays ranges, of files of more than 4 MiB, until the channel is closed, and a channel
// that signals the first request for one.
func stalled() (spoil func(http.ResponseWriter, *http.Request) bool, asked, open chan struct{}) {
	asked, open = make(chan struct{}), make(chan struct{})
	var once sync.Once
	return func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("Range") != "" {
			once.Do(func() { close(asked) })
			select {
			case <-open:
			case <-r.Context().Done():
			}
		}
		return false
	}, asked, open
}

// Ctrl-C leaves the download to the daemon.
func TestInterruptLeavesDownloadRunning(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 4, 9<<20)
	spoil, asked, open := stalled()
	s.Before(spoil)
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		<-asked
		interrupt()
	}()
	code, _, stderr := s.ballast(ctx, "prefetch", ref)
	if code != exitInterrupted || !strings.Contains(stderr, "ballastd continues") || strings.Contains(stderr, "context canceled") {
		t.Errorf("interrupted: code %d, stderr %q", code, stderr)
	}
	close(open)
	s.ok(t, "prefetch", ref) // joins it
	if s.Sent() > 9<<20+64<<10 {
		t.Errorf("%d bytes were downloaded for a model of %d", s.Sent(), 9<<20)
	}
}

// A stop of the daemon is an interruption that can be resumed.
func TestStopOfDaemonIsResumable(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 5, 9<<20)
	spoil, asked, open := stalled()
	s.Before(spoil)
	go func() {
		<-asked
		s.stop()
	}()
	code, _, stderr := s.ballast(t.Context(), "prefetch", ref)
	if code != exitResumable {
		t.Errorf("stopped: code %d, want %d; stderr %q", code, exitResumable, stderr)
	}
	close(open)
	s.stop()
	s.start(t, 1)
	s.ok(t, "prefetch", ref)
}

// TestPrefetchListContinuesAfterError continues after a model that cannot be downloaded.
func TestPrefetchListContinuesAfterError(t *testing.T) {
	s := newSite(t)
	one, two := s.add("one", 6, 1<<20), s.add("two", 7, 1<<20)
	list := filepath.Join(s.dir, "list")
	if err := os.WriteFile(list, []byte(one+"\n"+s.Host()+"/none:v1\n"+two+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := s.ballast(t.Context(), "-q", "prefetch", "--file", list)
	if code != exitNotFound || strings.Count(stdout, "sha256:") != 2 || !strings.Contains(stderr, "none:v1") {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// A daemon does not take over the root or the sockets of another.
func TestSecondDaemon(t *testing.T) {
	s := newSite(t)
	cfg, err := config.Load(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.New(cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d has it open", os.Getpid())) {
		t.Errorf("same root: got %v", err)
	}
	cfg.Root = filepath.Join(s.dir, "other")
	d, err := daemon.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another process answers there") {
		t.Errorf("same sockets: got %v", err)
	}
	s.ok(t, "ls")
}

// Only root can connect to the daemon, and sockets of a killed daemon are replaced.
func TestSockets(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"admin.sock", "ballastd.sock"} {
		info, err := os.Stat(filepath.Join(s.dir, "run", name))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := info.Mode(), os.ModeSocket|0o600; got != want {
			t.Errorf("%s: mode %v, want %v", name, got, want)
		}
	}
	s.stop()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.address, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	s.start(t, 1)
	s.ok(t, "ls")
}
