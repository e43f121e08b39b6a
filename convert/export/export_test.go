package export_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/content/oci"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forms are all combinations of forms and options.
var forms = []struct {
	name string
	o    export.Options
}{
	{"ballast", export.Options{Form: export.FormBallast}},
	{"ballast-no-chunks", export.Options{Form: export.FormBallast, NoChunks: true}},
	{"ballast-seekable", export.Options{Form: export.FormBallast, Compress: export.CompressSeekable}},
	{"ballast-chunked", export.Options{Form: export.FormBallast, Compress: export.CompressChunked}},
	{"modelpack", export.Options{Form: export.FormModelPack}},
	{"modelpack-tar", export.Options{Form: export.FormModelPack, Tar: true}},
	{"cnai", export.Options{Form: export.FormCNAI}},
	{"image", export.Options{Form: export.FormImage}},
	{"image-chunked", export.Options{Form: export.FormImage, Compress: export.CompressChunked}},
}

// models returns small models of all formats. The weights span chunks.
func models() []*converttest.Built {
	return converttest.All(converttest.Files(weights(4<<20 + 17)))
}

func weights(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>9)
	}
	copy(p, "GGUF of no version")
	return p
}

// fromServer returns the source of a reference.
func fromServer(t testing.TB, c *remote.Client, name string) *resolve.Source {
	t.Helper()
	src, err := (&resolve.Resolver{Upstream: c}).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// toServer returns the target of a reference.
func toServer(t testing.TB, c *remote.Client, name string) export.Target {
	t.Helper()
	ref, err := remote.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := c.Repository(ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	return export.NewRegistry(repo, ref)
}

func toLayout(t testing.TB, dir, tag string) *layout.Layout {
	t.Helper()
	l, err := layout.Create(dir, tag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// fromLayout returns the model in a layout.
func fromLayout(t testing.TB, l *layout.Layout) *resolve.Source {
	t.Helper()
	src, err := new(resolve.Resolver).Open(t.Context(), l.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// read reads a layout that was written, as a model or as an image.
func read(t testing.TB, dir, tag string) map[string]converttest.File {
	t.Helper()
	l, err := layout.Open(dir, tag)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var m ocispec.Manifest
	if err := json.Unmarshal(l.Manifest(), &m); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType == "" {
		return untar(t, dir, m)
	}
	blobs := map[digest.Digest][]byte{}
	for _, d := range append(m.Layers, m.Config) {
		p, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", d.Digest.Encoded()))
		if err != nil {
			t.Fatal(err)
		}
		if digest.FromBytes(p) != d.Digest || int64(len(p)) != d.Size {
			t.Fatalf("blob %s has other bytes", d.Digest)
		}
		blobs[d.Digest] = p
	}
	files, err := converttest.Extract(fromLayout(t, l).Model, blobs)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// sums returns the compared properties of files.
func sums(files map[string]converttest.File) map[string]string {
	out := map[string]string{}
	for p, f := range files {
		out[p] = fmt.Sprintf("%o %s", f.Mode, digest.FromBytes(f.Data))
	}
	return out
}

// tarOf returns the uncompressed tar of a layer of an image.
func tarOf(t testing.TB, dir string, l ocispec.Descriptor) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", l.Digest.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	if l.MediaType != ocispec.MediaTypeImageLayerZstd {
		return p
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if p, err = d.DecodeAll(p, nil); err != nil {
		t.Fatal(err)
	}
	return p
}

func untar(t testing.TB, dir string, m ocispec.Manifest) map[string]converttest.File {
	t.Helper()
	files := map[string]converttest.File{}
	for _, l := range m.Layers {
		r := tar.NewReader(bytes.NewReader(tarOf(t, dir, l)))
		for {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				files[h.Name] = converttest.File{Path: h.Name, Data: p, Mode: uint32(h.Mode)}
			}
		}
	}
	return files
}

// client returns a client of registries on this machine.
func client(t testing.TB, creds remote.Credentials) *remote.Client {
	t.Helper()
	c, err := remote.New(remote.Options{Credentials: func(string, string) (remote.Credentials, error) { return creds, nil }, Shared: remote.AnyHost, Stall: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestEveryFormHasAllFiles converts every format into every form, and reads it back.
func TestEveryFormHasAllFiles(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	for _, b := range models() {
		ref := s.Add("models/"+b.Name, "1", b)
		for _, form := range forms {
			t.Run(b.Name+"/"+form.name, func(t *testing.T) {
				src := fromServer(t, c, ref)
				dir := t.TempDir()
				res, err := export.Run(t.Context(), src, toLayout(t, dir, "v1"), form.o)
				if err != nil {
					t.Fatal(err)
				}
				got := read(t, dir, "v1")
				maps.DeleteFunc(got, func(p string, _ converttest.File) bool { return strings.HasPrefix(p, "origin/") })
				if diff := cmp.Diff(sums(b.Files), sums(got)); diff != "" {
					t.Errorf("files (-want +got):\n%.2000s", diff)
				}
				checkForm(t, form.o, src, res, dir)
				// The result in a registry is the same.
				name := "out/" + b.Name + "-" + form.name
				again, err := export.Run(t.Context(), fromServer(t, c, ref), toServer(t, c, s.Host()+"/"+name+":v1"), form.o)
				if err != nil {
					t.Fatal(err)
				}
				if again.Digest != res.Digest || digest.FromBytes(s.Manifest(name, "v1")) != res.Digest {
					t.Errorf("registry: digest %s, layout: %s", again.Digest, res.Digest)
				}
				if missing := missing(t, s, name, res.Manifest); missing != nil {
					t.Errorf("the registry lacks %v", missing)
				}
			})
		}
	}
}

// missing returns the blobs of a manifest that a repository lacks.
func missing(t testing.TB, s *registrytest.Server, repository string, manifest []byte) (out []digest.Digest) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(m.Layers, m.Config) {
		if s.Blob(repository, d.Digest) == nil {
			out = append(out, d.Digest)
		}
	}
	return out
}

// checkForm checks the properties of the form.
func checkForm(t *testing.T, o export.Options, src *resolve.Source, res *export.Result, dir string) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(res.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	cfg, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", m.Config.Digest.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	switch o.Form {
	case export.FormModelPack:
		for _, l := range m.Layers { // the name that "oras pull" gives the file
			path, title := l.Annotations["org.cncf.model.filepath"], l.Annotations[ocispec.AnnotationTitle]
			if !o.Tar && title != path || o.Tar && title != path+".tar" {
				t.Errorf("%s: title %q", path, title)
			}
		}
	case export.FormImage:
		var im ocispec.Image
		if err := json.Unmarshal(cfg, &im); err != nil || im.OS != "linux" || im.Architecture != "amd64" || len(im.RootFS.DiffIDs) != len(m.Layers) {
			t.Errorf("config %s: %v", cfg, err)
		}
		for i, l := range m.Layers {
			chunked := l.MediaType == ocispec.MediaTypeImageLayerZstd && l.Annotations["io.github.containers.zstd-chunked.manifest-checksum"] != ""
			if chunked != (o.Compress != "") || !chunked && l.MediaType != ocispec.MediaTypeImageLayer || im.RootFS.DiffIDs[i] != digest.FromBytes(tarOf(t, dir, l)) {
				t.Errorf("layer %d: %+v, diffID %s", i, l, im.RootFS.DiffIDs[i])
			}
		}
	case export.FormBallast:
		im, err := image.Build(src.Model)
		if err != nil {
			t.Fatal(err)
		}
		if o.NoChunks && im.Digest != res.Digest {
			t.Errorf("got %s, want that of the facade, %s", res.Digest, im.Digest)
		}
	}
}

// TestChunkDigests compares the digests of chunks with the bytes.
func TestChunkDigests(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	w := weights(9<<20 + 17)
	ref := s.Add("m", "1", converttest.ModelPackRaw(converttest.Files(w)))
	dst := toServer(t, c, s.Host()+"/out:1")
	res, err := export.Run(t.Context(), fromServer(t, c, ref), dst, export.Options{})
	if err != nil {
		t.Fatal(err)
	}
	again := fromServer(t, c, s.Host()+"/out:1")
	var chunks []filetable.Chunk
	for _, f := range again.Model.Table.Files {
		if len(f.Source.Chunks) == 0 && f.Size > 0 {
			t.Errorf("%s has no chunks", f.Path)
		}
		if f.Path == "model.gguf" {
			chunks = f.Source.Chunks
		}
	}
	var want []filetable.Chunk
	whole := verify.NewHash()
	cuts := []int{0, 256 << 10, 4 << 20, 8 << 20, len(w)}
	for i, off := range cuts[:len(cuts)-1] {
		p := w[off:cuts[i+1]]
		k := filetable.Chunk{Offset: int64(off), Size: int64(len(p)), Digest: digest.FromBytes(p)}
		whole.Write(p)
		if off+len(p) < len(w) {
			if k.State, err = whole.State(); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, k)
	}
	if diff := cmp.Diff(want, chunks); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
	// A second conversion sends nothing, and has the same digest.
	s.Count("")
	second, err := export.Run(t.Context(), fromServer(t, c, ref), dst, export.Options{})
	if err != nil || second.Digest != res.Digest || second.Sent != 0 {
		t.Errorf("second: %v, %+v", err, second)
	}
	if n := s.Count("POST"); n != 0 {
		t.Errorf("second: %d uploads", n)
	}
}

// TestMount checks that blobs are mounted within a registry, and uploaded if it does not mount them.
func TestMount(t *testing.T) {
	for _, noMount := range []bool{false, true} {
		s, c := registrytest.New(t), client(t, remote.Credentials{})
		s.Before(func(_ http.ResponseWriter, r *http.Request) bool {
			if noMount && r.Method == http.MethodPost {
				r.URL.RawQuery = ""
			}
			return false
		})
		ref := s.Add("m", "1", converttest.ModelPackRaw(converttest.Files(weights(1<<20))))
		res, err := export.Run(t.Context(), fromServer(t, c, ref), toServer(t, c, s.Host()+"/out:1"), export.Options{Form: export.FormModelPack})
		if err != nil {
			t.Fatal(err)
		}
		if noMount != (res.Mounted == 0) || noMount == (res.Sent == 0) {
			t.Errorf("noMount %v: %d mounted, %d sent", noMount, res.Mounted, res.Sent)
		}
		if n := s.Uploads(); n != 0 {
			t.Errorf("noMount %v: %d uploads were not finished", noMount, n)
		}
	}
}

// TestWrongBytes checks that a source with wrong bytes leaves no tag and no wrong blob.
func TestWrongBytes(t *testing.T) {
	w := weights(9 << 20)
	for _, b := range []*converttest.Built{
		converttest.ModelPackRaw(converttest.Files(w)), converttest.ModelPackTar(converttest.Files(w)), converttest.ModelPackTarGzip(converttest.Files(w)),
	} {
		for _, form := range forms {
			t.Run(b.Name+"/"+form.name, func(t *testing.T) {
				from, to, c := registrytest.New(t), registrytest.New(t), client(t, remote.Credentials{})
				src := fromServer(t, c, from.Add("m", "1", b))
				var m ocispec.Manifest
				if err := json.Unmarshal(b.Manifest, &m); err != nil {
					t.Fatal(err)
				}
				biggest := slices.MaxFunc(m.Layers, func(a, b ocispec.Descriptor) int { return int(a.Size - b.Size) })
				wrong := bytes.Clone(b.Blobs[biggest.Digest])
				wrong[len(wrong)/2] ^= 1
				from.Serve("/v2/m/blobs/"+biggest.Digest.String(), wrong)
				dir := t.TempDir()
				for _, dst := range []export.Target{toServer(t, c, to.Host()+"/out:1"), toLayout(t, dir, "1")} {
					_, err := export.Run(t.Context(), src, dst, form.o)
					if !errdefs.IsDataLoss(err) && !(strings.Contains(b.Name, "gzip") && err != nil) {
						t.Errorf("%s: got %v", dst, err)
					}
				}
				if p := to.Manifest("out", "1"); p != nil {
					t.Errorf("tagged: %s", p)
				}
				if _, err := os.Stat(filepath.Join(dir, "index.json")); !os.IsNotExist(err) {
					t.Errorf("index.json: %v", err)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, "blobs/sha256/.*")); left != nil {
					t.Errorf("temporary files are left: %v", left)
				}
				if to.Blob("out", biggest.Digest) != nil {
					t.Error("the wrong blob was written")
				}
			})
		}
	}
}

// TestRefused checks the errors of targets that refuse access.
func TestRefused(t *testing.T) {
	from, c := registrytest.New(t), client(t, remote.Credentials{Username: "u", Secret: "s"})
	src := fromServer(t, c, from.Add("m", "1", converttest.ModelPackRaw(converttest.Files(weights(1<<20)))))
	refusing := func(status int) registrytest.Hook {
		return func(w http.ResponseWriter, r *http.Request) bool {
			writes := r.Method != http.MethodGet && r.Method != http.MethodHead
			if writes {
				http.Error(w, `{"errors":[{"code":"DENIED","message":"not yours"}]}`, status)
			}
			return writes
		}
	}
	for _, tt := range []struct {
		name   string
		user   string // that the target requires
		before registrytest.Hook
		is     func(error) bool
	}{
		{"forbidden", "", refusing(403), errdefs.IsPermissionDenied},
		{"read-only", "", refusing(405), errdefs.IsPermissionDenied},
		{"other user", "x:y", nil, errdefs.IsUnauthorized},
		{"uploads elsewhere", "", func(w http.ResponseWriter, r *http.Request) bool {
			starts := r.Method == http.MethodPost
			if starts {
				w.Header().Set("Location", "http://203.0.113.7"+r.URL.Path+"1?state=x")
				w.WriteHeader(http.StatusAccepted)
			}
			return starts
		}, errdefs.IsPermissionDenied},
	} {
		to := registrytest.New(t)
		to.SetUser("out", tt.user)
		to.Before(tt.before)
		for _, form := range forms {
			_, err := export.Run(t.Context(), src, toServer(t, c, to.Host()+"/out:1"), form.o)
			if !tt.is(err) || to.Manifest("out", "1") != nil {
				t.Errorf("%s, %s: got %v", tt.name, form.name, err)
			}
			if err != nil && strings.Contains(err.Error(), "dTpz") {
				t.Errorf("the error contains credentials: %v", err)
			}
		}
	}
	to := registrytest.New(t)
	to.SetUser("out", "u:s")
	if _, err := export.Run(t.Context(), src, toServer(t, c, to.Host()+"/out:1"), export.Options{}); err != nil {
		t.Errorf("with credentials: %v", err)
	}
}

// TestRetries checks that requests are repeated if a target fails temporarily.
func TestRetries(t *testing.T) {
	from, to, c := registrytest.New(t), registrytest.New(t), client(t, remote.Credentials{})
	src := fromServer(t, c, from.Add("m", "1", converttest.ModelPackRaw(converttest.Files(weights(1<<20)))))
	var mu sync.Mutex
	fail := map[string]int{"POST /uploads/": 2, "PUT /uploads/": 1, "HEAD /blobs/": 1, "PATCH /uploads/": 1, "PUT /manifests/": 1}
	to.Before(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		failing := false
		for k, n := range fail {
			if method, part, _ := strings.Cut(k, " "); method == r.Method && strings.Contains(r.URL.Path, part) && n > 0 {
				fail[k], failing = n-1, true
			}
		}
		if failing {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return failing
	})
	for _, form := range forms {
		if _, err := export.Run(t.Context(), src, toServer(t, c, to.Host()+"/"+form.name+":1"), form.o); err != nil {
			t.Errorf("%s: %v", form.name, err)
		}
	}
}

// TestDocumentsOfOrigin checks that the manifest and the config of the origin can be restored.
func TestDocumentsOfOrigin(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	files := converttest.Files(weights(1 << 20))
	many := slices.Clone(files)
	for i := range 40 {
		many = append(many, converttest.File{Path: fmt.Sprintf("docs/%02d.md", i), Data: []byte{byte(i)}, Mode: 0o644})
	}
	for _, b := range append(converttest.All(files), converttest.ModelPackRaw(many)) {
		src := fromServer(t, c, s.Add("m", "1", b))
		dir := t.TempDir()
		res, err := export.Run(t.Context(), src, toLayout(t, dir, "1"), export.Options{Form: export.FormModelPack})
		if err != nil {
			t.Fatal(err)
		}
		var m, was ocispec.Manifest
		if err := errors.Join(json.Unmarshal(res.Manifest, &m), json.Unmarshal(b.Manifest, &was)); err != nil {
			t.Fatal(err)
		}
		keep := func(key string, d digest.Digest) []byte {
			if v := m.Annotations[key]; v != "" {
				p, _ := base64.StdEncoding.DecodeString(v)
				return p
			}
			p, _ := os.ReadFile(filepath.Join(dir, "blobs/sha256", d.Encoded()))
			return p
		}
		if got := keep("dev.ballast.origin.manifest", digest.Digest(m.Annotations["dev.ballast.origin.digest"])); !bytes.Equal(got, b.Manifest) {
			t.Errorf("%s: manifest of the origin: %.200s", b.Name, got)
		}
		if got := keep("dev.ballast.origin.config", was.Config.Digest); !bytes.Equal(got, b.Blobs[was.Config.Digest]) {
			t.Errorf("%s: config of the origin: %.200s", b.Name, got)
		}
		for k, v := range m.Annotations {
			if len(v) > 8<<10 {
				t.Errorf("%s: annotation %s has %d bytes", b.Name, k, len(v))
			}
		}
	}
}

// TestEqualSources checks that a model from a registry, from a layout and from its converted image gives
// the same result.
func TestEqualSources(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	b := converttest.DockerAIFiles(converttest.Files(weights(5 << 20)))
	ref := s.Add("some/name", "1", b)
	dir := t.TempDir()
	l := toLayout(t, dir, "x")
	for d, p := range b.Blobs {
		if err := l.Put(t.Context(), d, int64(len(p)), func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.PutManifest(t.Context(), b.MediaType, b.Manifest); err != nil {
		t.Fatal(err)
	}
	for _, form := range forms {
		var digests []digest.Digest
		for range 2 {
			for _, src := range []*resolve.Source{fromServer(t, c, ref), fromLayout(t, l)} {
				res, err := export.Run(t.Context(), src, toLayout(t, t.TempDir(), ""), form.o)
				if err != nil {
					t.Fatal(err)
				}
				digests = append(digests, res.Digest)
			}
		}
		if len(slices.Compact(digests)) != 1 {
			t.Errorf("%s: got %v", form.name, digests)
		}
	}
	// A converted image is also a source.
	if _, err := export.Run(t.Context(), fromServer(t, c, ref), toServer(t, c, s.Host()+"/converted:1"), export.Options{}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if _, err := export.Run(t.Context(), fromServer(t, c, s.Host()+"/converted:1"), toLayout(t, out, "1"), export.Options{Form: export.FormModelPack}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sums(b.Files), sums(read(t, out, "1"))); diff != "" {
		t.Errorf("from a converted image (-want +got):\n%.2000s", diff)
	}
}

// TestDryRun checks that a dry run sends nothing, and reports the digest if it can be known.
func TestDryRun(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	files := converttest.Files(weights(5 << 20))
	for _, tt := range []struct {
		b     *converttest.Built
		o     export.Options
		known bool
	}{
		{converttest.ModelPackRaw(files), export.Options{Form: export.FormModelPack}, true},
		{converttest.ModelPackRaw(files), export.Options{Form: export.FormBallast, NoChunks: true}, true},
		{converttest.ModelPackRaw(files), export.Options{Form: export.FormBallast}, false},
		{converttest.ModelPackRaw(files), export.Options{Form: export.FormModelPack, Tar: true}, false},
		{converttest.ModelPackTar(files), export.Options{Form: export.FormModelPack}, false},
		{converttest.ModelPackTarGzip(files), export.Options{Form: export.FormModelPack}, false},
		{converttest.ModelPackTarGzip(files), export.Options{Form: export.FormImage}, false},
		{converttest.ModelPackTarGzip(files), export.Options{Form: export.FormBallast, NoChunks: true}, true},
		{converttest.ModelPackTarGzip(files), export.Options{Compress: export.CompressSeekable}, false},
		{converttest.ModelPackTar(files), export.Options{Compress: export.CompressChunked}, false},
	} {
		ref := s.Add("m/"+tt.b.Name, "1", tt.b)
		dst := toServer(t, c, s.Host()+"/out/"+tt.b.Name+":1")
		o := tt.o
		o.DryRun = true
		s.Count("")
		dry, err := export.Run(t.Context(), fromServer(t, c, ref), dst, o)
		if err != nil {
			t.Fatalf("%s %+v: %v", tt.b.Name, tt.o, err)
		}
		if n := s.Count("P"); n != 0 || s.Manifest("out/"+tt.b.Name, "1") != nil {
			t.Errorf("%s: %d write requests", tt.b.Name, n)
		}
		if tt.known != (dry.Digest != "") {
			t.Errorf("%s %+v: digest %q", tt.b.Name, tt.o, dry.Digest)
		}
		res, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, t.TempDir(), ""), tt.o)
		if err != nil {
			t.Fatal(err)
		}
		if tt.known && (dry.Digest != res.Digest || dry.Sent != res.Sent) {
			t.Errorf("%s: dry run %s, %d bytes; conversion %s, %d bytes", tt.b.Name, dry.Digest, dry.Sent, res.Digest, res.Sent)
		}
	}
}

// TestOrasReadsLayout reads layouts with another implementation.
func TestOrasReadsLayout(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	ref := s.Add("m", "1", converttest.Ollama(converttest.Files(weights(5<<20)), converttest.OllamaConfigNew))
	for _, form := range forms {
		dir := t.TempDir()
		res, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, dir, "v1"), form.o)
		if err != nil {
			t.Fatal(err)
		}
		layout, err := oci.NewFromFS(t.Context(), os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		desc, err := oras.Copy(t.Context(), layout, "v1", memory.New(), "v1", oras.DefaultCopyOptions) // verifies
		if err != nil || desc.Digest != res.Digest {
			t.Errorf("%s: got %v, %v", form.name, desc.Digest, err)
		}
		children, err := content.Successors(t.Context(), layout, desc)
		if err != nil || len(children) < 2 {
			t.Errorf("%s: got %v, %v", form.name, children, err)
		}
	}
}

// endless is a blob of zeros larger than memory. Some transfers of it break off.
type endless struct {
	size  int64
	every int64
	opens atomic.Int64
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (e *endless) Fetch(_ context.Context, _ digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	e.opens.Add(1)
	return io.NopCloser(io.LimitReader(zeros{}, min(n, e.every))), off, nil
}

// TestMemoryLimit sends a blob that is much larger than the memory limit.
func TestMemoryLimit(t *testing.T) {
	for _, how := range []export.Compression{export.CompressNone, export.CompressSeekable, export.CompressChunked} {
		t.Run(string(how), func(t *testing.T) { testMemory(t, export.Options{Compress: how, TempDir: t.TempDir()}) })
	}
}

func testMemory(t *testing.T, o export.Options) {
	const size = 512 << 20
	h := digest.SHA256.Digester()
	if _, err := io.CopyN(h.Hash(), zeros{}, size); err != nil {
		t.Fatal(err)
	}
	to, c := registrytest.New(t), client(t, remote.Credentials{})
	to.Before(func(w http.ResponseWriter, r *http.Request) bool { // it keeps no bytes
		if r.Method == http.MethodPost || !strings.Contains(r.URL.Path, "/blobs/uploads/") {
			return false
		}
		h := digest.SHA256.Digester()
		if _, err := io.Copy(h.Hash(), r.Body); err != nil || h.Digest().String() != r.URL.Query().Get("digest") {
			w.WriteHeader(http.StatusBadRequest)
		} else {
			w.WriteHeader(http.StatusCreated)
		}
		return true
	})
	e := &endless{size: size, every: 100 << 20}
	model := &convert.Model{
		Table: filetable.Table{
			Version: 1, Origin: filetable.Origin{Format: "x", Digest: h.Digest(), Mapping: 1},
			Blobs: []filetable.Blob{{Digest: h.Digest(), Size: size}},
			Files: []filetable.File{{Path: "w.bin", Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: h.Digest(), Source: &filetable.Source{Blob: h.Digest(), Size: size}}},
		},
		Layers: []convert.Layer{{Desc: ocispec.Descriptor{Digest: h.Digest(), Size: size}, Kind: mediatype.KindWeight, MediaType: mediatype.Layer(mediatype.FormatModelPack, mediatype.KindWeight, "", "")}},
	}
	var peak atomic.Uint64
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	_, err := export.Run(t.Context(), &resolve.Source{Model: model, Fetcher: e}, toServer(t, c, to.Host()+"/out:1"), o)
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	if got := peak.Load(); got > 100<<20 {
		t.Errorf("memory: got %d bytes", got)
	}
	if got := e.opens.Load(); got < 6 {
		t.Errorf("opened %d times: no transfer broke off", got)
	}
}

// TestUnpackNames checks that the progress of an archive has another name than its file.
func TestUnpackNames(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	src := fromServer(t, c, s.Add("m", "1", converttest.ModelPackTarGzip(converttest.Files(weights(1<<20)))))
	names := map[string]bool{}
	o := export.Options{Form: export.FormModelPack, Progress: func(all []store.Progress) {
		for _, p := range all {
			names[p.Name] = true
		}
	}}
	if _, err := export.Run(t.Context(), src, toLayout(t, t.TempDir(), "1"), o); err != nil {
		t.Fatal(err)
	}
	if !names["model.gguf"] || !names["model.gguf (to unpack)"] {
		t.Errorf("got %v", slices.Sorted(maps.Keys(names)))
	}
}

// A slowTarget calls halfway after the first bytes of a large blob.
type slowTarget struct {
	export.Target
	halfway func(size int64)
}

func (s slowTarget) Put(ctx context.Context, d digest.Digest, size int64, open export.Opener) error {
	if size < 1<<20 {
		return s.Target.Put(ctx, d, size, open)
	}
	return s.Target.Put(ctx, d, size, func(ctx context.Context) (io.ReadCloser, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		_, err = r.Read(make([]byte, 1000))
		s.halfway(size)
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		return open(ctx)
	})
}

// TestProgressOfPacked counts the bytes of files while they are packed, and then those of the blob while it is sent.
func TestProgressOfPacked(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	src := fromServer(t, c, s.Add("m", "1", converttest.ModelPackRaw(converttest.Files(append(storetest.Random(1, 2<<20), make([]byte, 2<<20)...)))))
	sending := make(chan store.Progress)
	var last store.Progress
	o := export.Options{Compress: export.CompressSeekable, Parallel: 1, Progress: func(all []store.Progress) {
		for _, p := range all {
			if p.Name != "model.gguf" {
				continue
			}
			if last = p; p.State == "uploading" && p.Done > 0 && p.Done < p.Total {
				select {
				case sending <- p:
				default:
				}
			}
		}
	}}
	seen := false
	to := slowTarget{toLayout(t, t.TempDir(), "1"), func(size int64) {
		select {
		case p := <-sending:
			if seen = true; p.Done != 1000 || p.Total != size {
				t.Errorf("while a blob of %d bytes is sent: %+v", size, p)
			}
		case <-time.After(2 * time.Minute):
		}
	}}
	if _, err := export.Run(t.Context(), src, to, o); err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("there is no progress while the blob is sent")
	}
	if last.State != "complete" || last.Done != last.Total {
		t.Errorf("at the end: %+v", last)
	}
}
