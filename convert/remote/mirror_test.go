package remote_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// mirroredHost returns a client for registry.example, which is server with a mirror.
func mirroredHost(t *testing.T, server, mirror *upstream, o remote.Options) *remote.Client {
	o.HostsDir = hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n  capabilities = [\"pull\"]\n")
	return newClient(t, o)
}

// flipping makes u answer requests for blobs with those of content, one of whose bytes is wrong.
func flipping(u *upstream, content []byte) {
	bad := bytes.Clone(content)
	bad[len(bad)/2] ^= 1
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(bad))
		return true
	})
}

// TestMirrorLies checks that a pull gets the right bytes from the registry if a mirror sends wrong ones, and that
// the mirror is not asked again.
func TestMirrorLies(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(content []byte) *storetest.Builder{
		"digest of the file": func(p []byte) *storetest.Builder { return storetest.NewBuilder("m").Raw("model", p, 0o644) },
		"chunk digests": func(p []byte) *storetest.Builder {
			return storetest.NewBuilder("m").RawChunks("model", p, 0o644, 1<<20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mirror, server := newUpstream(t), newUpstream(t)
			content := storetest.Random(1, 10<<20)
			d := server.putBlob(content)
			flipping(mirror, content)
			c := mirroredHost(t, server, mirror, remote.Options{})
			pull := func(p []byte, build *storetest.Builder) {
				t.Helper()
				s := storetest.Open(t, t.TempDir(), store.Options{})
				from := []transfer.Source{{Name: "registry.example/org/model", Fetcher: repositoryOf(t, c, exampleRef(t, "x"), nil)}}
				if err := s.Hydrate(t.Context(), build.Put(t, s), store.HydrateOptions{Sources: from}); err != nil {
					t.Fatal(err)
				}
				f, err := s.OpenObject(digest.FromBytes(p), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, p) {
					t.Errorf("the store has other bytes, %v", err)
				}
			}
			pull(content, build(content))
			if m := c.Mirrors(); len(m) != 1 || m[0].Counts.Wrong.Load() != 1 || time.Until(m[0].For["registry.example"].AvoidedUntil()) < 59*time.Minute {
				t.Fatalf("mirrors: %+v", m)
			}
			asked := len(mirror.Requests())
			if asked == 0 {
				t.Error("the mirror was not asked first")
			}
			other := storetest.Random(2, 1<<20)
			server.putBlob(other)
			pull(other, build(other))
			if _, _, err := fetch(t.Context(), repositoryOf(t, c, exampleRef(t, "x"), nil), d, 10<<20, 0, 10); err != nil {
				t.Error(err)
			}
			if n := len(mirror.Requests()); n != asked {
				t.Errorf("the mirror got %d requests after its wrong bytes", n-asked)
			}
		})
	}
}

// TestDamagedRegistry checks that a mirror is not to blame for what the registry itself has.
func TestDamagedRegistry(t *testing.T) {
	t.Parallel()
	for _, chunks := range []bool{false, true} {
		mirror, server := newUpstream(t), newUpstream(t)
		content := storetest.Random(1, 5<<20)
		flipping(mirror, content)
		flipping(server, content)
		c := mirroredHost(t, server, mirror, remote.Options{})
		s := storetest.Open(t, t.TempDir(), store.Options{})
		b := storetest.NewBuilder("m").Raw("model", content, 0o644)
		if chunks {
			b = storetest.NewBuilder("m").RawChunks("model", content, 0o644, 1<<20)
		}
		from := []transfer.Source{{Name: "registry.example/org/model", Fetcher: repositoryOf(t, c, exampleRef(t, "x"), nil)}}
		if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Sources: from}); !errdefs.IsDataLoss(err) {
			t.Errorf("chunks %t: %v, want wrong bytes", chunks, err)
		}
		if m := c.Mirrors()[0]; !m.For["registry.example"].AvoidedUntil().IsZero() || m.Counts.Wrong.Load() != 0 {
			t.Errorf("chunks %t: the mirror is avoided", chunks)
		}
	}
}

// TestMirrorForgivesAMiss checks that a range that a mirror does not have does not end its use.
func TestMirrorForgivesAMiss(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	content := random(10_000)
	d := server.putBlob(content)
	mirror.putBlob(content)
	mirror.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "bytes=200-299" {
			w.WriteHeader(404)
			return true
		}
		return false
	})
	r := repositoryOf(t, mirroredHost(t, server, mirror, remote.Options{}), exampleRef(t, "x"), nil)
	for i := range int64(20) {
		if got, _, err := fetch(t.Context(), r, d, int64(len(content)), i*100, 100); err != nil || !bytes.Equal(got, content[i*100:][:100]) {
			t.Fatalf("range %d: %d bytes, %v", i, len(got), err)
		}
	}
	if n, o := len(mirror.Requests()), len(server.Requests()); n != 20 || o != 1 {
		t.Errorf("the mirror got %d requests and the registry %d, want 20 and 1", n, o)
	}
}

// TestMirrorPrivacy checks that bytes of a mirror are public only if the registry gives them to everybody.
func TestMirrorPrivacy(t *testing.T) {
	t.Parallel()
	alice := &remote.Credentials{Username: "alice", Secret: secret}
	for name, tt := range map[string]struct {
		registry func(*upstream, digest.Digest)
		creds    *remote.Credentials
		only     bool // upstream.mirror_only
		private  bool
		asked    int // requests to the registry
	}{
		"open registry":                        {asked: 1},
		"open registry, with a password":       {creds: alice, asked: 1},
		"password":                             {registry: func(u *upstream, _ digest.Digest) { u.Before(basicAuth) }, creds: alice, private: true, asked: 2},
		"password that the caller lacks":       {registry: func(u *upstream, _ digest.Digest) { u.Before(basicAuth) }, private: true, asked: 1},
		"registry that does not have the blob": {registry: func(u *upstream, _ digest.Digest) { u.Before(empty) }, private: true, asked: 1},
		"registry that says that it has it":    {registry: (*upstream).lie, private: true, asked: 1},
		"registry that is down":                {registry: func(u *upstream, _ digest.Digest) { u.Close() }, private: true},
		"mirror only":                          {only: true, private: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mirror, server := newUpstream(t), newUpstream(t)
			content := random(1000)
			d := mirror.putBlob(content)
			server.putBlob(content)
			if tt.registry != nil {
				tt.registry(server, d)
			}
			c := mirroredHost(t, server, mirror, remote.Options{MirrorOnly: func(string) bool { return tt.only }})
			r := repositoryOf(t, c, exampleRef(t, "x"), tt.creds)
			for i := range int64(3) {
				body, _, err := r.Fetch(t.Context(), d, 1000, i, 10)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, body); err != nil {
					t.Fatal(err)
				}
				if got := transfer.IsPrivate(body); got != tt.private {
					t.Errorf("fetch %d: private %t, want %t", i, got, tt.private)
				}
				body.Close()
			}
			if n := len(mirror.Requests()); n != 3 {
				t.Errorf("the mirror got %d requests, want 3", n)
			}
			if n := len(server.Requests()); n != tt.asked {
				t.Errorf("the registry got %d requests, want %d", n, tt.asked)
			}
		})
	}
}

// TestProofsExpire: what the registry has said about a blob is asked again after a while.
func TestProofsExpire(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	d := mirror.putBlob(random(1000))
	server.putBlob(random(1000))
	r := repositoryOf(t, mirroredHost(t, server, mirror, remote.Options{}), exampleRef(t, "x"), nil)
	private := func() bool {
		body, _, err := r.Fetch(t.Context(), d, 1000, 100, 200)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if !transfer.IsPrivate(body) {
			t.Error("bytes that were not read are public")
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Fatal(err)
		}
		return transfer.IsPrivate(body)
	}
	for range 2 {
		if private() {
			t.Error("private")
		}
	}
	if n := len(server.Requests()); n != 1 {
		t.Errorf("the registry got %d requests, want 1", n)
	}
	server.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	remote.Expire(r)
	if !private() {
		t.Error("public for ever")
	}
}

// TestMirrorOnly checks that a registry that must not be asked is not asked.
func TestMirrorOnly(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	o := remote.Options{HostsDir: dir, MirrorOnly: func(host string) bool { return host == "registry.example" }}
	r := repositoryOf(t, newClient(t, o), exampleRef(t, "x"), nil)
	if _, err := r.Manifest(t.Context(), "latest"); !errdefs.IsNotFound(err) {
		t.Errorf("a manifest that the mirror does not have: %v", err)
	}
	if _, _, err := r.Fetch(t.Context(), digest.FromString("x"), 10, 0, 5); !errdefs.IsNotFound(err) {
		t.Errorf("a blob that the mirror does not have: %v", err)
	}
	if n := len(server.Requests()); n > 0 {
		t.Errorf("the registry got %d requests", n)
	}
	o.HostsDir = hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n")
	if _, err := newClient(t, o).Repository(exampleRef(t, "x"), nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "mirror_only") {
		t.Errorf("without a mirror: %v", err)
	}
}

// TestMirrorIsRemembered checks that a change of hosts.toml does not make a mirror that lied a new one.
func TestMirrorIsRemembered(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	setting := "server = \"" + server.URL + "\"\n[host.\"" + mirror.URL + "\"]\n"
	dir := hostsDir(t, "registry.example", setting)
	c := newClient(t, remote.Options{HostsDir: dir})
	repositoryOf(t, c, exampleRef(t, "x"), nil)
	before := c.Mirrors()
	if len(before) != 1 || before[0].Address != mirror.URL+"/v2" || before[0].For["registry.example"] == nil {
		t.Fatalf("mirrors: %+v", before)
	}
	if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte(setting+"\n# changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	repositoryOf(t, c, exampleRef(t, "x"), nil)
	if after := c.Mirrors(); len(after) != 1 || after[0].For["registry.example"] != before[0].For["registry.example"] {
		t.Error("the mirror is another one after a change of hosts.toml")
	}
}

// TestMirrorSpoilsNoSmallBlob reads small blobs that a mirror gives wrong or breaks off: they come from the registry.
func TestMirrorSpoilsNoSmallBlob(t *testing.T) {
	t.Parallel()
	content := random(1000)
	for name, answer := range map[string]func(http.ResponseWriter){
		"wrong":      func(w http.ResponseWriter) { w.Write(make([]byte, len(content))) },
		"broken off": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "1000"); w.Write(content[:500]) },
		"too long":   func(w http.ResponseWriter) { w.Write(append(content[:999:999], "xy"...)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mirror, server := newUpstream(t), newUpstream(t)
			d := server.putBlob(content)
			mirror.Before(func(w http.ResponseWriter, r *http.Request) bool { answer(w); return true })
			a := repositoryOf(t, mirroredHost(t, server, mirror, remote.Options{}), exampleRef(t, "x"), nil).Artifact(remote.Manifest{})
			if p, err := a.ReadBlob(t.Context(), ocispec.Descriptor{Digest: d, Size: 1000}, 2000); err != nil || !bytes.Equal(p, content) {
				t.Errorf("ReadBlob: %d bytes, %v", len(p), err)
			}
			if p, err := a.ReadSmall(t.Context(), d, 1000); err != nil || !bytes.Equal(p, content) {
				t.Errorf("ReadSmall: %d bytes, %v", len(p), err)
			}
			if len(mirror.Requests()) == 0 {
				t.Error("the mirror was not asked; the test proves nothing")
			}
		})
	}
}

// TestUnverifiedIsOfRegistry reads ranges that nothing verifies: names and modes of files of a tar are among them, so
// they are not a mirror's to give.
func TestUnverifiedIsOfRegistry(t *testing.T) {
	t.Parallel()
	content := random(1000)
	for only, want := range map[bool]int{false: 0, true: 1} {
		mirror, server := newUpstream(t), newUpstream(t)
		d := server.putBlob(content)
		flipping(mirror, content)
		c := mirroredHost(t, server, mirror, remote.Options{MirrorOnly: func(string) bool { return only }})
		r, err := repositoryOf(t, c, exampleRef(t, "x"), nil).Artifact(remote.Manifest{}).BlobAt(t.Context(), ocispec.Descriptor{Digest: d, Size: 1000})
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 1000)
		if _, err := r.ReadAt(p, 0); err != nil || bytes.Equal(p, content) == only {
			t.Errorf("mirror only %t: %v", only, err)
		}
		if n := len(mirror.Requests()); n != want {
			t.Errorf("mirror only %t: the mirror got %d requests, want %d", only, n, want)
		}
	}
}

// TestVerdictIsRemembered checks that requests for many other hosts do not make a mirror that lied a new one.
func TestVerdictIsRemembered(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	c := mirroredHost(t, server, mirror, remote.Options{})
	repositoryOf(t, c, exampleRef(t, "x"), nil)
	lied := c.Mirrors()[0].For["registry.example"]
	transfer.ReportWrong(slog.New(slog.DiscardHandler), transfer.Source{}, []transfer.Source{{Endpoint: lied}})
	askOthers(t, c, remote.MaxHosts+1)
	repositoryOf(t, c, exampleRef(t, "x"), nil)
	if c.Mirrors()[0].For["registry.example"] != lied {
		t.Error("the verdict is forgotten")
	}
}
