package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A stranger is the registry of an attacker: it serves one artifact by any name, with any bytes for any
// digest.
type stranger struct {
	node.Artifact

	// hold is a blob that is not answered before free is closed, except for its last byte, which is
	// requested before a model is shown.
	hold digest.Digest
	free chan struct{}

	mu    sync.Mutex // guards asked
	asked map[digest.Digest]int
}

// newStranger starts the registry and configures it on the node.
func newStranger(t *testing.T, n *node.Node, name string, a node.Artifact) *stranger {
	t.Helper()
	s := &stranger{Artifact: a, free: make(chan struct{}), asked: map[digest.Digest]int{}}
	n.Upstream(t, name, node.Serve(t, s))
	return s
}

// times returns the number of requests for a blob.
func (s *stranger) times(d digest.Digest) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[d]
}

// ServeHTTP implements http.Handler.
func (s *stranger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dir, last := path.Split(r.URL.Path)
	switch {
	case strings.HasSuffix(dir, "/manifests/"):
		w.Header().Set("Content-Type", s.MediaType)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.Manifest))
		return
	case !strings.HasSuffix(dir, "/blobs/"):
		http.NotFound(w, r)
		return
	}
	d := digest.Digest(last)
	s.mu.Lock()
	s.asked[d]++
	s.mu.Unlock()
	p, ok := s.Blobs[d]
	if !ok {
		http.NotFound(w, r)
		return
	}
	end := strconv.Itoa(len(p) - 1)
	if d == s.hold && r.Header.Get("Range") != "bytes="+end+"-"+end {
		select {
		case <-s.free:
		case <-r.Context().Done():
			return
		}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
}

// tableImage returns a preconverted image of any table.
func tableImage(t *testing.T, table *filetable.Table) node.Artifact {
	return annotatedImage(t, table, nil)
}

// annotatedImage is tableImage with annotations of the table layer.
func annotatedImage(t *testing.T, table *filetable.Table, annotations map[string]string) node.Artifact {
	t.Helper()
	p, err := table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	a := node.Artifact{MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{}}
	put := func(mediaType string, p []byte) ocispec.Descriptor {
		a.Blobs[digest.FromBytes(p)] = p
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}
	}
	config, err := json.Marshal(ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(p)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	layer := put(filetable.MediaTypeTableLayer, p)
	layer.Annotations = annotations
	a.Manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: a.MediaType,
		Config: put(ocispec.MediaTypeImageConfig, config), Layers: []ocispec.Descriptor{layer},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An attacker requests the manifest of another user's model from the facade, at the attacker's
// registry, which has it. Pulls of other users never use that registry, whatever its name is.
func TestStrangerIsNotAsked(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(220, 24<<20)))
	want := digest.FromBytes(b.Files["model.gguf"].Data)
	n.Upstream(t, "registry.good", n.Registry.Host)
	n.Registry.Push(t, "library/model", "1", artifact(b))
	evil := newStranger(t, n, "aaa.evil", artifact(b))
	evil.hold = want

	req, err := http.NewRequest(http.MethodHead, n.FacadeURL("aaa.evil", "library/model", "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := n.FacadeClient(t)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("the stranger's request: %s", resp.Status)
	}
	mustPull(t, n, "ballast", "registry.good/library/model:1")
	wantFiles(t, n, "registry.good/library/model:1", states(b))
	if asked := evil.times(want); asked > 0 {
		t.Errorf("the stranger's registry was asked for the weights %d times", asked)
	}
	if sent := n.Registry.Wire.BlobBytes()[want]; sent != 24<<20 {
		t.Errorf("the good registry sent %d bytes of the weights, want all", sent)
	}
	// Nor does a later fetch.
	if err := os.Remove(object(n, want)); err != nil {
		t.Fatal(err)
	}
	if out := n.Ballast("verify", "--repair"); out.Err != nil {
		t.Errorf("repair: %v\n%s", out.Err, out.Output())
	}
	if !complete(n, b.Files["model.gguf"].Data) || evil.times(want) > 0 {
		t.Errorf("after the repair: complete %t; the stranger was asked %d times", complete(n, b.Files["model.gguf"].Data), evil.times(want))
	}
}

// An attacker's table names the digest of a layer of a private image on the node. It gets no bytes of
// it, and no information about it.
func TestStrangerGetsNoContent(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	private := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "private.test", private.Host)
	image := node.Image(t, nil, []node.File{{Path: "secret", Mode: 0o644, Data: weights(221, 1<<20)}})
	private.Push(t, "a/image", "1", image)
	private.User, private.Password = "alice", "s3cret"
	mustPull(t, n, "ballast", "private.test/a/image:1", "--user", "alice:s3cret")
	var m ocispec.Manifest
	if err := json.Unmarshal(image.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	layer := m.Layers[0]
	for name, size := range map[string]int64{"right": layer.Size, "wrong": layer.Size + 1} {
		table := &filetable.Table{
			Version: filetable.Version,
			Origin:  filetable.Origin{Format: "modelpack", Digest: digest.FromString(name), Mapping: 1},
			Files: []filetable.File{{Path: "stolen", Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: layer.Digest,
				Source: &filetable.Source{Blob: layer.Digest, Size: size}}},
			Blobs: []filetable.Blob{{Digest: layer.Digest, Size: size}},
		}
		newStranger(t, n, name+".evil", tableImage(t, table))
		for _, flags := range [][]string{nil, {"--local"}} {
			out := n.Pull("ballast", name+".evil/x:1", flags...)
			if out.Err == nil {
				t.Errorf("%s size, %v: the pull succeeded", name, flags)
			}
			if name == "wrong" && strings.Contains(out.Output(), fmt.Sprint(layer.Size)) {
				t.Errorf("the error tells the size: %s", out.Output())
			}
		}
	}
	if _, err := os.Stat(object(n, layer.Digest)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the layer is among the objects: %v", err)
	}
}

// An attacker's image names the table of a private model by its digest. containerd has it, and the attacker's
// registry does not. Pulls are refused; only who uses containerd's own client code (--local), and the digest of that
// image, for which containerd asks the attacker's registry itself, gets what containerd gives to everybody who knows
// the digest of a layer, as the page on security says.
func TestStrangerNamesTable(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	private := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "private.test", private.Host)
	b := converttest.ModelPackRaw(converttest.Files(weights(222, 1<<20)))
	private.Push(t, "a/model", "1", artifact(b))
	const ref = "private.test/a/model:1"
	converted := convertedDigest(t, n, ref)
	private.User, private.Password = "alice", "s3cret"
	mustPull(t, n, "ballast", ref, "--user", "alice:s3cret")
	manifest := n.Ctr("content", "get", converted)
	var m ocispec.Manifest
	if err := json.Unmarshal([]byte(manifest.Stdout), &m); manifest.Err != nil || err != nil {
		t.Fatalf("%v, %v\n%s", manifest.Err, err, manifest.Output())
	}
	table := m.Layers[len(m.Layers)-1]
	config, err := json.Marshal(ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{table.Digest}},
	})
	if err != nil {
		t.Fatal(err)
	}
	theft := node.Artifact{MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{digest.FromBytes(config): config}}
	theft.Manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: theft.MediaType,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []ocispec.Descriptor{{MediaType: table.MediaType, Digest: table.Digest, Size: table.Size, Annotations: map[string]string{
			"containerd.io/snapshot/cri.image-ref": ref, // as if it were pulled from there
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	newStranger(t, n, "x.evil", theft)
	const stolen = "x.evil/x:1"
	if out := n.Pull("ballast", stolen); out.Err == nil {
		t.Error("ctr has pulled it")
	}
	if _, err := n.CRI(t).Pull(stolen, ""); err == nil {
		t.Error("a pod has pulled it")
	}
	if out := n.Pull("ballast", stolen, "--local"); out.Err == nil {
		t.Error("ctr --local has pulled it")
	}
	if out := n.Pull("ballast", stolen+"@"+digest.FromBytes(theft.Manifest).String(), "--local"); out.Err != nil {
		t.Errorf("it is safer than the page on security says: %v\n%s", out.Err, out.Output())
	}
}

// An attacker's table has other chunks for a file of another user's model, and is shown first, from a
// registry that hangs. The model can be read early nevertheless. After the daemon was killed, its
// containers read the right bytes, through open files and others, and the model becomes complete.
func TestStrangerAfterRestart(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	b := converttest.ModelPackRaw(converttest.Files(weights(222, 96<<20)))
	want := b.Files["model.gguf"].Data
	ref := convertedModel(t, n, b)
	repository, _, _ := strings.Cut(strings.TrimPrefix(ref, n.Registry.Host+"/"), ":")
	evil := newStranger(t, n, "evil.test", lyingChunks(t, n, repository, want))
	evil.hold = digest.FromBytes(want)

	mustPull(t, n, "ballast", "evil.test/i:1")
	mustPull(t, n, "ballast", ref)
	m := &lazyModel{node: n, ref: ref, want: want, path: filepath.Join(rootOf(t, n, ref), "model.gguf")}
	if err := m.read(0, 4096); err != nil {
		t.Fatal(err)
	}
	unopened := *m
	unopened.path = filepath.Join(rootOf(t, n, ref), "model.gguf")
	n.Ballastd.Kill()
	close(evil.free)
	n.StartBallastd(t)
	for _, at := range []int{64 << 20, 80 << 20, 90 << 20} {
		if err := unopened.read(at, 4096); err != nil {
			t.Errorf("file that was not open: %v", err)
		}
		if err := m.read(at, 4096); err != nil {
			t.Errorf("file that was open: %v", err)
		}
	}
	if m.complete() {
		t.Error("the model was complete too early; the test proves nothing")
	}
	m.readAll(t)
	wantFiles(t, n, ref, states(b))
}

// An attacker knows the digest of a private file, and mounts a model that names it before the file is
// on the node; the attacker's registry hangs. When the owner pulls the file, the attacker's containers,
// running and new, still wait for the attacker's registry, also after a restart of the daemon.
func TestStrangerWaitsForAFile(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	secret := converttest.ModelPackRaw(converttest.Files(weights(223, 9<<20)))
	want := secret.Files["model.gguf"].Data
	d := digest.FromBytes(want)
	private := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "private.test", private.Host)
	private.Push(t, "a/model", "1", artifact(secret))
	private.User, private.Password = "alice", "s3cret"

	src := &filetable.Source{Blob: d, Size: int64(len(want))}
	for at := 0; at < len(want); at += 1 << 20 {
		src.Chunks = append(src.Chunks, filetable.Chunk{Offset: int64(at), Size: 1 << 20, Digest: digest.FromString(fmt.Sprint(at))})
	}
	image := tableImage(t, &filetable.Table{
		Version: filetable.Version,
		Origin:  filetable.Origin{Format: "modelpack", Digest: digest.FromString("evil"), Mapping: 1},
		Files:   []filetable.File{{Path: "stolen", Type: filetable.TypeReg, Mode: 0o644, Size: src.Size, Digest: d, Source: src}},
		Blobs:   []filetable.Blob{{Digest: d, Size: src.Size}},
	})
	image.Blobs[d] = make([]byte, len(want))
	evil := newStranger(t, n, "evil.test", image)
	evil.hold = d
	t.Cleanup(func() { close(evil.free) })
	mustPull(t, n, "ballast", "evil.test/x:1")
	before := rootOf(t, n, "evil.test/x:1")

	mustPull(t, n, "ballast", "private.test/a/model:1", "--user", "alice:s3cret")
	wantFiles(t, n, "private.test/a/model:1", states(secret))
	after := rootOf(t, n, "evil.test/x:1")
	check := func(when string, roots ...string) {
		for _, root := range roots {
			// A read that waits for a registry that hangs must be killed.
			out, err := exec.Command("timeout", "-s", "KILL", "3", "head", "-c", "1000", filepath.Join(root, "stolen")).Output()
			if bytes.Equal(out, want[:1000]) || err == nil {
				t.Errorf("%s: the stranger reads %d bytes of the private file: %v", when, len(out), err)
			}
		}
	}
	check("complete", after, before)
	n.Ballastd.Kill()
	n.StartBallastd(t)
	check("after a restart", rootOf(t, n, "evil.test/x:1"), after, before)
	wantFiles(t, n, "private.test/a/model:1", states(secret))
}

// lyingChunks returns an image with the table of a converted model in which the chunks of the file want
// have the digests of other bytes. It has all blobs, with the other bytes for the file.
func lyingChunks(t *testing.T, n *node.Node, repository string, want []byte) node.Artifact {
	t.Helper()
	blob := func(d digest.Digest) []byte { return fetched(t, n, "/v2/"+repository+"/blobs/"+d.String()) }
	var m ocispec.Manifest
	if err := json.Unmarshal(fetched(t, n, "/v2/"+repository+"/manifests/1"), &m); err != nil {
		t.Fatal(err)
	}
	table, err := filetable.Decode(blob(m.Layers[len(m.Layers)-1].Digest))
	if err != nil {
		t.Fatal(err)
	}
	lie := bytes.Clone(want)
	for i := range lie {
		lie[i] ^= 0x5a
	}
	blobs := map[digest.Digest][]byte{digest.FromBytes(want): lie}
	lies := 0
	for _, f := range table.Files {
		switch {
		case f.Digest == digest.FromBytes(want):
			for i, c := range f.Source.Chunks {
				f.Source.Chunks[i].Digest = digest.FromBytes(lie[c.Offset : c.Offset+c.Size])
				lies++
			}
		case f.Source != nil && f.Source.Blob != "":
			blobs[f.Source.Blob] = blob(f.Source.Blob)
		}
	}
	if lies == 0 {
		t.Fatal("the file has no chunks; the test proves nothing")
	}
	a := tableImage(t, table)
	for d, p := range blobs {
		a.Blobs[d] = p
	}
	return a
}

// TestCartonOfStrangers: a stranger's carton says that it has a file with the digest of a private file. No client shows
// the file by the stranger's name, also not by two pulls for pods: one for overlayfs, which fetches blobs, and one for
// ballast, which finds them in containerd.
func TestCartonOfStrangers(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	n.ConfigureContainerd(t, "--runtime-handler", "ballast")
	n.Containerd.Stop(t)
	n.StartContainerd(t)
	pods := n.CRI(t)
	secret := weights(93, 4<<20)
	private := node.StartRegistry(t, t.TempDir())
	private.Push(t, "org/secret", "1", artifact(converttest.ModelPackRaw([]converttest.File{{Path: "model.gguf", Data: secret, Mode: 0o644}})))
	private.User, private.Password = "alice", "s3cret-of-alice"
	n.Upstream(t, private.Host, private.Host)
	mustPull(t, n, "ballast", private.Ref("org/secret", "1"), "--user", "alice:s3cret-of-alice")
	waitFor(t, "the secret to be complete", func() error {
		if !complete(n, secret) {
			return os.ErrNotExist
		}
		return nil
	})

	zeros := make([]byte, len(secret))
	c := converttest.GoodCarton(weights(94, 1000)).With(converttest.CartonFile{Path: "model/stolen.bin", Data: zeros, Method: 8})
	c.Manifest = func(p []byte) []byte {
		return bytes.ReplaceAll(p, []byte(digest.FromBytes(zeros).Encoded()), []byte(digest.FromBytes(secret).Encoded()))
	}
	newStranger(t, n, "evil.example", artifact(converttest.CartonArtifact(c)))
	const ref = "evil.example/x/m:1"
	for name, pull := range map[string]func() error{
		"transfer": func() error { return n.Pull("ballast", ref).Err },
		"local":    func() error { return n.Pull("ballast", ref, "--local").Err },
		"pods": func() error {
			_, _ = pods.Pull(ref, "") // fails, and may leave blobs in containerd
			_, err := pods.Pull(ref, "ballast")
			return err
		},
	} {
		if err := pull(); err == nil {
			t.Errorf("%s: pulled a carton with a file that it does not have", name)
		}
	}
	for _, ns := range []string{"default", "k8s.io"} {
		content := n.Ctr("-n", ns, "content", "ls")
		if content.Err != nil {
			t.Fatal(content.Err)
		}
		for line := range strings.Lines(content.Stdout) {
			if strings.HasPrefix(line, digest.FromBytes(secret).String()) {
				t.Errorf("%s: containerd has the private file: %s", ns, line)
			}
		}
	}
}
