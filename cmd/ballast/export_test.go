package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// small returns a model with the given weights.
func small(weights string) *converttest.Built {
	return converttest.ModelPackRaw([]converttest.File{
		{Path: "config.json", Data: []byte("{}"), Mode: 0o644}, {Path: "empty", Mode: 0o644}, {Path: "w/model.gguf", Data: []byte(weights), Mode: 0o644},
	})
}

// wantExported compares the names in a directory for CRI-O with those that are expected, and the files of the model
// with a name with those of the store.
func (s *site) wantExported(t *testing.T, dir, name string, b *converttest.Built, linked bool, names ...string) {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(dir, "artifacts/index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var idx ocispec.Index
	if err := json.Unmarshal(p, &idx); err != nil || len(idx.Manifests) != len(names) {
		t.Errorf("the index, which should have %q: %v\n%s", names, err, p)
	}
	for i, d := range idx.Manifests {
		if d.Annotations[ocispec.AnnotationRefName] != names[i] {
			t.Errorf("manifest %d has the annotations %v, want %s", i, d.Annotations, names[i])
		}
	}
	l, err := layout.Open(filepath.Join(dir, "artifacts"), name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if string(l.Manifest()) != string(b.Manifest) {
		t.Errorf("%s: the manifest is %s", name, l.Manifest())
	}
	for d, want := range b.Blobs {
		blob := filepath.Join(dir, "artifacts/blobs/sha256", d.Encoded())
		got, err := os.ReadFile(blob)
		if err != nil || digest.FromBytes(got) != digest.FromBytes(want) {
			t.Errorf("%s: blob %s: %v", name, d, err)
			continue
		}
		info, err := os.Stat(blob)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s: blob %s has the mode %v", name, d, info.Mode())
		}
		object, err := os.Stat(store.ObjectFile(filepath.Join(s.dir, "root"), d))
		isFile := len(want) > 0 && d != configDigest(t, b.Manifest) // and not a document
		if isFile && (err != nil || os.SameFile(info, object) != linked) {
			t.Errorf("%s: blob %s is the object: %v, want %v: %v", name, d, !linked, linked, err)
		}
	}
}

// TestExport gives models to CRI-O: as links to the objects, which follow tags and repairs, and without what nothing
// needs any more.
func TestExport(t *testing.T) {
	s := newSite(t)
	dir := filepath.Join(s.dir, "crio")
	export := func(args ...string) []string { return append([]string{"export", "--artifact-store", dir}, args...) }
	one, other, docker := small("weights 1"), small("weights 2"), converttest.DockerAIFiles(converttest.Files(storetest.Random(7, 1<<10)))
	ref, refDocker := s.Add("a/model", "v1", one), s.Add("a/docker", "v1", docker)
	if code, _, stderr := s.ballast(t.Context(), export(ref)...); code != exitNotFound {
		t.Errorf("before the download: code %d, %s", code, stderr)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	// CRI-O has been started before.
	for name, text := range map[string]string{"index.lock": "", "index.json": `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":null}`} {
		if err := os.WriteFile(filepath.Join(dir, "artifacts", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "artifacts"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.ok(t, "prefetch", ref, refDocker)
	if out := s.ok(t, export(ref, refDocker)...); !strings.Contains(out, one.Digest().String()) {
		t.Errorf("got %s", out)
	}
	s.wantExported(t, dir, ref, one, true, ref, refDocker)
	s.wantExported(t, dir, refDocker, docker, true, ref, refDocker)
	if info, err := os.Stat(filepath.Join(dir, "artifacts")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("other users of the host can read the models: %v, %v", info, err)
	}
	// The tag moves.
	s.Add("a/model", "v1", other)
	s.ok(t, "prefetch", ref)
	s.wantExported(t, dir, ref, one, true, ref, refDocker)
	s.ok(t, export(ref)...)
	s.wantExported(t, dir, ref, other, true, refDocker, ref)
	blob := func(text string) string {
		return filepath.Join(dir, "artifacts/blobs/sha256", digest.FromString(text).Encoded())
	}
	if _, err := os.Stat(blob("weights 1")); !os.IsNotExist(err) {
		t.Errorf("what no manifest needs: %v", err)
	}
	// A repair replaces a damaged file, and the next export its link.
	if err := os.WriteFile(blob("weights 2"), []byte("weights X"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.ok(t, "verify", "--repair")
	if p, err := os.ReadFile(blob("weights 2")); err != nil || string(p) != "weights X" {
		t.Errorf("the link to the damaged file has %q, %v", p, err)
	}
	s.ok(t, export(ref)...)
	s.wantExported(t, dir, ref, other, true, refDocker, ref)
	// The files outlive the model, and a removal takes only what it needs alone.
	s.ok(t, "rm", ref)
	s.ok(t, "gc", "--yes")
	if p, err := os.ReadFile(blob("weights 2")); err != nil || string(p) != "weights 2" {
		t.Errorf("after the removal of the model: %q, %v", p, err)
	}
	s.ok(t, export("--remove", ref)...)
	s.wantExported(t, dir, refDocker, docker, true, refDocker)
	if _, err := os.Stat(blob("weights 2")); !os.IsNotExist(err) {
		t.Errorf("after --remove: %v", err)
	}
	if code, _, stderr := s.ballast(t.Context(), export("--remove", ref)...); code != exitNotFound {
		t.Errorf("twice: code %d, %s", code, stderr)
	}
	// A copy was killed, and a manifest is lost.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "artifacts/blobs/sha256/.ingest-KILLED"), nil, 0o644), os.Remove(filepath.Join(dir, "artifacts/blobs/sha256", docker.Digest().Encoded()))); err != nil {
		t.Fatal(err)
	}
	s.ok(t, export("--remove", refDocker)...)
	if err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if strings.Contains(e.Name(), "ingest") {
			t.Errorf("left behind: %s", p)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestExportKilled: the next export removes what one that was killed has left, and nothing of other programs.
func TestExportKilled(t *testing.T) {
	s := newSite(t)
	dir := filepath.Join(s.dir, "crio")
	killed, other := s.Add("a/killed", "v1", converttest.ModelPackRaw([]converttest.File{
		{Path: "a.safetensors", Data: []byte("first"), Mode: 0o644}, {Path: "b.safetensors", Data: []byte("second"), Mode: 0o644},
	})), s.Add("a/other", "v1", small("weights"))
	s.ok(t, "prefetch", killed, other)
	blob := func(text string) string {
		return filepath.Join(dir, "artifacts/blobs/sha256", digest.FromString(text).Encoded())
	}
	s.ok(t, "export", "--artifact-store", dir, other)
	if err := os.WriteFile(blob("of another program"), []byte("of another program"), 0o644); err != nil {
		t.Fatal(err)
	}

	// It is killed while it waits for a reader of the index, with all blobs written.
	lock, err := os.OpenFile(filepath.Join(dir, "artifacts/index.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "--config", s.config, "--address", s.address, "export", "--artifact-store", dir, killed)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the last blob", func() bool { _, err := os.Stat(blob("second")); return err == nil })
	if err := errors.Join(cmd.Process.Kill(), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the export has ended before")
	}

	s.ok(t, "export", "--artifact-store", dir, other)
	for _, text := range []string{"first", "second"} {
		if _, err := os.Stat(blob(text)); !os.IsNotExist(err) {
			t.Errorf("%q of the killed export is left: %v", text, err)
		}
	}
	for _, text := range []string{"of another program", "weights"} {
		if _, err := os.Stat(blob(text)); err != nil {
			t.Error(err)
		}
	}
	s.ok(t, "export", "--artifact-store", dir, "--remove", other)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestExportRefuses has what CRI-O cannot mount, what its pods must not have, and directories that others could change.
func TestExportRefuses(t *testing.T) {
	s := newSite(t)
	files := converttest.Files(storetest.Random(8, 1<<10))
	dir := filepath.Join(s.dir, "crio")
	refuses := func(code int, text string, args ...string) {
		t.Helper()
		got, stdout, stderr := s.ballast(t.Context(), append([]string{"export", "--artifact-store", dir}, args...)...)
		if got != code || !strings.Contains(stderr, text) || stdout != "" {
			t.Errorf("export %q: code %d, want %d, %s%s", args, got, code, stdout, stderr)
		}
		if p, err := os.ReadFile(filepath.Join(dir, "artifacts/index.json")); err == nil && strings.Contains(string(p), "sha256") {
			t.Errorf("export %q: the index is %s", args, p)
		}
	}
	for text, b := range map[string]*converttest.Built{
		"layer 0 is an archive": converttest.ModelPackTarGzip(files), "which is no OCI artifact": converttest.Ollama(files, converttest.OllamaConfigNew),
		"none of its layers has a name": converttest.DockerAIGGUF(files),
	} {
		ref := s.Add("a/"+b.Name, "v1", b)
		s.ok(t, "prefetch", ref)
		refuses(exitUnsupported, text, ref)
	}
	secret := small("secret")
	name := s.Host() + "/a/secret:v1"
	s.ok(t, "import", writeLayout(t, filepath.Join(s.dir, "layout"), secret), "--name", name, "--private")
	refuses(exitUnauthorised, "only credentials can read it", name)

	ref := s.Add("a/model", "v1", small("weights"))
	s.ok(t, "prefetch", ref)
	for _, d := range []string{dir, filepath.Join(dir, "artifacts")} {
		if err := os.Chmod(d, 0o775); err != nil {
			t.Fatal(err)
		}
		refuses(exitState, d+" must be a directory of this user", ref)
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	strange := s.Add("a/my__model", "v1", small("weights"))
	s.ok(t, "prefetch", strange)
	refuses(exitUnsupported, "CRI-O could read no artifact", strange)
	s.stop()
	s.more = "[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nlicenses = [\"no-such-licence\"]\n"
	s.start(t, 1)
	refuses(exitState, "for signatures does not accept it", ref)
	s.stop()
	s.more = ""
	s.start(t, 1)

	theirs := filepath.Join(s.dir, "theirs")
	if err := errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 65534, 65534), os.Rename(dir, dir+".away"), os.Symlink(theirs, dir)); err != nil {
		t.Fatal(err)
	}
	refuses(exitState, "must be a directory of this user", ref)
	if entries, err := os.ReadDir(filepath.Join(theirs, "artifacts")); err == nil && len(entries) > 0 {
		t.Errorf("written: %v", entries)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	refuses(exitState, "another export writes", ref)
	lock.Close()

	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	refuses(exitState, "is not on the file system of", ref)
	s.ok(t, "export", "--artifact-store", dir, "--copy", ref)
	s.wantExported(t, dir, ref, small("weights"), false, ref)
	s.ok(t, "export", "--artifact-store", dir, "--copy", "--private", name)
	s.wantExported(t, dir, name, secret, false, ref, name)
	if code, _, stderr := s.ballast(t.Context(), "export", ref); code != exitUsage || !strings.Contains(stderr, "oci:DIR") {
		t.Errorf("without a directory: code %d, %s", code, stderr)
	}
}
