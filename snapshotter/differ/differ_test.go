package differ

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestApplyTable(t *testing.T) {
	n := newNode(t)
	weights, license := storetest.Random(1, 3<<20), []byte("do as you like")
	n.upstream = storetest.NewFetcher(weights, license)
	desc := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"LICENSE", "weights/w.gguf"}, license, weights), map[string]string{
		"containerd.io/distribution.source.registry.example:5000": "team/b,team/a",
		"containerd.io/distribution.source.mirror.example":        "team/a",
		"containerd.io/gc.root":                                   "x",
	})
	got := n.apply(t, "", desc)
	want := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: desc.Digest, Size: desc.Size}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("descriptor (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(n.files(t, desc.Digest.String()), map[string]string{"LICENSE": string(license), "weights/w.gguf": string(weights)}); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(n.asked, []Repository{{"mirror.example", "team/a"}, {"registry.example:5000", "team/a"}, {"registry.example:5000", "team/b"}}); diff != "" {
		t.Errorf("sources (-got +want):\n%s", diff)
	}
	for _, s := range []string{"level=INFO", "model complete", "table=" + desc.Digest.String(), fmt.Sprint("bytes=", 3<<20+len(license)), "dur="} {
		if !strings.Contains(n.log.String(), s) {
			t.Errorf("log has no %q:\n%s", s, n.log)
		}
	}
	refs := n.store.Catalog.Refs("snapshot/")
	if len(refs) != 1 || refs[0].Table != desc.Digest {
		t.Fatalf("got references %v, want one to the table", refs)
	}
	if diff := cmp.Diff(refs[0].Sources, []string{n.fetchers("", nil)[0].Name}); diff != "" {
		t.Errorf("what it was got from (-got +want):\n%s", diff)
	}
	if !n.snap.Shows(refs[0]) {
		t.Error("the snapshot does not show the table")
	}
}

// A client that pulled all blobs, such as "ctr images pull --local", needs no upstream.
func TestApplyLocal(t *testing.T) {
	n := newNode(t)
	weights := storetest.Random(1, 5<<20+7)
	source := from("registry.example", "team/m")
	blob := n.put(t, filetable.MediaTypeBlobLayer, weights, source)
	table := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"w"}, weights), source)

	got := n.apply(t, "", blob)
	want := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: filetable.BlobDiffID(blob.Digest), Size: blob.Size}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("blob layer (-got +want):\n%s", diff)
	}
	n.apply(t, got.Digest.String(), table)
	if got := n.files(t, table.Digest.String()); got["w"] != string(weights) || len(got) != 1 {
		t.Error("the model has other files")
	}
	// The blob layer is not part of the mount.
	mounts := withoutData(n.prepare(t, "c", table.Digest.String()))
	if s := fmt.Sprint(mounts); strings.Count(s, "/fs") != 2 {
		t.Errorf("got %v, want one upper and one lower directory", mounts)
	}
}

// A table that names the digest of a layer pulled by others with credentials gets none of its bytes,
// whatever its annotations are.
func TestApplyContentOfOthers(t *testing.T) {
	n := newNode(t)
	secret := storetest.Random(1, 1<<20)
	n.put(t, ocispec.MediaTypeImageLayer, secret, from("private.example", "team/image"))
	for name, annotation := range map[string]string{"plain": "", "spoofed": "private.example/team/image:1"} {
		t.Run(name, func(t *testing.T) {
			table := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{name}, secret), from("evil.example", "x"))
			table.Annotations = map[string]string{"containerd.io/snapshot/cri.image-ref": annotation}
			_, err := n.applier.Apply(n.ctx, table, n.prepare(t, name, ""))
			if !errdefs.IsNotFound(err) {
				t.Errorf("got %v, want not found", err)
			}
			if n.store.Has(digest.FromBytes(secret)) {
				t.Error("the store has the bytes now")
			}
			if diff := cmp.Diff(n.asked, []Repository{{"evil.example", "x"}}); diff != "" {
				t.Errorf("repositories that were asked (-got +want):\n%s", diff)
			}
		})
	}
}

// A blob layer needs no bytes.
func TestApplyBlobUnfetched(t *testing.T) {
	n := newNode(t)
	d := digest.FromString("never fetched")
	n.apply(t, "", ocispec.Descriptor{MediaType: filetable.MediaTypeBlobLayer, Digest: d, Size: 1 << 40})
}

// A failed fetch or a wrong layer leaves nothing that can be committed, and the next attempt succeeds.
func TestApplyFails(t *testing.T) {
	weights := storetest.Random(1, 1<<20)
	wrong := bytes.Clone(weights)
	wrong[77] ^= 1
	d := digest.FromBytes(weights)
	tests := []struct {
		name     string
		upstream *storetest.Fetcher
		is       func(error) bool
	}{
		{"nowhere", storetest.NewFetcher(), errdefs.IsNotFound},
		{"wrong bytes", &storetest.Fetcher{Blobs: map[digest.Digest][]byte{d: wrong}}, errdefs.IsDataLoss},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			n.upstream = test.upstream
			desc := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"w"}, weights), nil)
			_, err := n.applier.Apply(n.ctx, desc, n.prepare(t, "key", ""))
			if !test.is(err) || !strings.Contains(fmt.Sprint(err), d.String()) {
				t.Errorf("got %v, want an error of its kind that names the blob", err)
			}
			if err := n.snap.Remove(n.ctx, "key"); err != nil {
				t.Fatal(err)
			}
			if refs := n.store.Catalog.Refs(""); len(refs) != 0 {
				t.Errorf("got references %v, %v, want none", refs, err)
			}
			n.upstream = storetest.NewFetcher(weights)
			n.apply(t, "", desc)
			if got := n.files(t, desc.Digest.String()); got["w"] != string(weights) {
				t.Error("second try: other bytes")
			}
		})
	}
}

func TestApplyHostileTable(t *testing.T) {
	n := newNode(t)
	good := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"w"}, []byte("w")), nil)
	with := func(f func(*ocispec.Descriptor)) ocispec.Descriptor {
		d := good
		f(&d)
		return d
	}
	tests := []struct {
		name string
		desc ocispec.Descriptor
		is   func(error) bool
	}{
		{"not a table", n.put(t, filetable.MediaTypeTableLayer, []byte("[]"), nil), errdefs.IsInvalidArgument},
		{"empty", n.put(t, filetable.MediaTypeTableLayer, []byte("{}"), nil), anyError},
		{"path leaves", n.put(t, filetable.MediaTypeTableLayer, hostilePath(t), nil), errdefs.IsInvalidArgument},
		{"another size", with(func(d *ocispec.Descriptor) { d.Size-- }), errdefs.IsDataLoss},
		{"huge", with(func(d *ocispec.Descriptor) { d.Size = filetable.MaxSize + 1 }), errdefs.IsInvalidArgument},
		{"negative", with(func(d *ocispec.Descriptor) { d.Size = -1 }), errdefs.IsInvalidArgument},
		{"not there", with(func(d *ocispec.Descriptor) { d.Digest = digest.FromString("x") }), errdefs.IsNotFound},
		{"no digest", with(func(d *ocispec.Descriptor) { d.Digest = "sha256:../../x" }), errdefs.IsInvalidArgument},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := n.applier.Apply(n.ctx, test.desc, n.prepare(t, fmt.Sprint("key", i), ""))
			if !test.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func anyError(err error) bool { return err != nil }

func hostilePath(t *testing.T) []byte {
	p := encode(t, []string{"xx/w"}, []byte("w"))
	return bytes.Replace(p, []byte(`"xx/w"`), []byte(`"../w"`), 1)
}

// Model layers on snapshots of another snapshotter are refused: they would be an empty directory.
func TestApplyElsewhere(t *testing.T) {
	n := newNode(t)
	table := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"w"}, []byte("w")), nil)
	mounts := []mount.Mount{{Type: "bind", Source: t.TempDir(), Options: []string{"rw", "rbind"}}}
	for _, desc := range []ocispec.Descriptor{table, {MediaType: filetable.MediaTypeBlobLayer, Digest: digest.FromString("b"), Size: 1}} {
		_, err := n.applier.Apply(n.ctx, desc, mounts)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ballast snapshotter") {
			t.Errorf("%s: got %v, want failed precondition that names the snapshotter", desc.MediaType, err)
		}
	}
}

func TestApplyPlain(t *testing.T) {
	n := newNode(t)
	base := tarOf(t, [2]string{"etc/"}, [2]string{"etc/a", "a"}, [2]string{"etc/b", "b"}, [2]string{"opt/"}, [2]string{"opt/old", "old"})
	next := tarOf(t, [2]string{"etc/"}, [2]string{"etc/.wh.a"}, [2]string{"opt/"}, [2]string{"opt/.wh..wh..opq"}, [2]string{"opt/new", "new"})
	tests := []struct {
		mediaType string
		pack      func(*testing.T, []byte) []byte
	}{
		{ocispec.MediaTypeImageLayer, func(_ *testing.T, p []byte) []byte { return p }},
		{ocispec.MediaTypeImageLayerGzip, gzipped},
		{ocispec.MediaTypeImageLayerZstd, zstded},
		{"application/vnd.docker.image.rootfs.diff.tar.gzip", gzipped},
	}
	for i, test := range tests {
		t.Run(test.mediaType, func(t *testing.T) {
			parent := ""
			for j, layer := range [][]byte{base, next} {
				desc := n.put(t, test.mediaType, test.pack(t, layer), nil)
				key := fmt.Sprint("key", i, j)
				got, err := n.applier.Apply(n.ctx, desc, n.prepare(t, key, parent), diff.WithSyncFs(true))
				if err != nil {
					t.Fatal(err)
				}
				want := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
				if diff := cmp.Diff(got, want); diff != "" {
					t.Errorf("layer %d (-got +want):\n%s", j, diff)
				}
				parent = fmt.Sprint("layer", i, j)
				if err := n.snap.Commit(n.ctx, parent, key); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(n.files(t, parent), map[string]string{"etc/b": "b", "opt/new": "new"}); diff != "" {
				t.Errorf("files (-got +want):\n%s", diff)
			}
		})
	}
}

func gzipped(t *testing.T, p []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t *testing.T, p []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(p, nil)
}

// containerd applies ordinary layers itself: the differ does not read their content, in either order of
// the diff service.
func TestApplyPlainByContainerd(t *testing.T) {
	n := newNode(t)
	layer := n.put(t, ocispec.MediaTypeImageLayerGzip, gzipped(t, tarOf(t, [2]string{"a", "a"})), nil)
	for name, a := range map[string]diff.Applier{"differ": n.applier, "diff service": n} {
		dir := t.TempDir()
		got, err := a.Apply(n.ctx, layer, []mount.Mount{{Type: "bind", Source: dir, Options: []string{"rw", "rbind"}}})
		if want := digest.FromBytes(tarOf(t, [2]string{"a", "a"})); err != nil || got.Digest != want {
			t.Errorf("%s: got %v, %v, want %s", name, got, err, want)
		}
		if p, err := os.ReadFile(filepath.Join(dir, "a")); string(p) != "a" {
			t.Errorf("%s: got %q, %v, want a file", name, p, err)
		}
	}
	if got := n.reads.Load(); got != 0 {
		t.Errorf("content was asked for %d times, want 0", got)
	}
	n.upstream = storetest.NewFetcher([]byte("a"))
	n.apply(t, "", n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"a"}, []byte("a")), nil))
	if got := n.reads.Load(); got == 0 {
		t.Error("no content was asked for of a table layer: it is not counted")
	}
}

// An image cannot claim that the node already has its layers.
func TestApplyPlainHostileAnnotation(t *testing.T) {
	n := newNode(t)
	layer := n.put(t, ocispec.MediaTypeImageLayer, tarOf(t, [2]string{"a", "a"}), nil)
	for _, v := range []string{"", "true", "again"} {
		layer.Annotations = map[string]string{annotationAgain: v}
		dir := t.TempDir()
		if _, err := n.applier.Apply(n.ctx, layer, []mount.Mount{{Type: "bind", Source: dir, Options: []string{"rw", "rbind"}}}); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
	if len(layer.Annotations) != 1 {
		t.Error("the annotations of the caller were changed")
	}
}

// Without another differ in its order containerd cannot apply ordinary layers; the error says why.
func TestApplyPlainWithoutDiffer(t *testing.T) {
	n := newNode(t)
	n.differs = n.differs[:1]
	layer := n.put(t, ocispec.MediaTypeImageLayer, tarOf(t, [2]string{"a", "a"}), nil)
	_, err := n.applier.Apply(n.ctx, layer, n.prepare(t, "key", ""))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "diff-service") {
		t.Errorf("got %v, want failed precondition that names the setting", err)
	}
}

// An ordinary image that was built on a model and changes it.
func TestApplyPlainOnModel(t *testing.T) {
	n := newNode(t)
	table := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"d/a", "d/b", "d/c"}, []byte("a"), []byte("b"), []byte("c")), nil)
	n.upstream = storetest.NewFetcher([]byte("a"), []byte("b"), []byte("c"))
	n.apply(t, "", table)
	layer := n.put(t, ocispec.MediaTypeImageLayer, tarOf(t, [2]string{"d/.wh.a"}, [2]string{"d/b", "other"}, [2]string{"new", "new"}), nil)
	n.apply(t, table.Digest.String(), layer)
	if diff := cmp.Diff(n.files(t, layer.Digest.String()), map[string]string{"d/b": "other", "d/c": "c", "new": "new"}); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

// With the differ in the default list, it also gets layers for other snapshotters.
func TestApplyPlainElsewhere(t *testing.T) {
	n := newNode(t)
	layer := n.put(t, ocispec.MediaTypeImageLayer, tarOf(t, [2]string{"a", "a"}), nil)
	dir := t.TempDir()
	got, err := n.applier.Apply(n.ctx, layer, []mount.Mount{{Type: "bind", Source: dir, Options: []string{"rw", "rbind"}}})
	if err != nil || got.Digest != layer.Digest {
		t.Errorf("bind: got %v, %v, want %s", got, err, layer.Digest)
	}
	_, err = n.applier.Apply(n.ctx, layer, []mount.Mount{{Type: "format/mkdir/overlay", Source: "overlay"}})
	if !errdefs.IsNotImplemented(err) {
		t.Errorf("mount manager's: got %v, want not implemented", err)
	}
	unknown := layer
	unknown.MediaType = "application/vnd.oci.image.layer.v1.unknown"
	if _, err := n.applier.Apply(n.ctx, unknown, n.prepare(t, "key", "")); err == nil {
		t.Error("unknown layer type: got no error")
	}
}

func TestCompare(t *testing.T) {
	n := newNode(t)
	_, err := n.applier.(diff.Comparer).Compare(n.ctx, nil, nil)
	if !errdefs.IsNotImplemented(err) {
		t.Errorf("got %v, want not implemented", err)
	}
}

// Progress is for callers in the same process.
func TestApplyProgress(t *testing.T) {
	n := newNode(t)
	desc := ocispec.Descriptor{MediaType: filetable.MediaTypeBlobLayer, Digest: digest.FromString("b"), Size: 77}
	var got []int64
	_, err := n.differ.Apply(n.ctx, desc, n.prepare(t, "key", ""), diff.WithProgress(func(_ ocispec.Descriptor, done int64) { got = append(got, done) }))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, []int64{0, 77}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestWithoutData(t *testing.T) {
	in := []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/hide:/a:/b:/objects", "metacopy=on", "upperdir=/u", "workdir=/w,lowerdir=/a:/b::/objects"}}}
	want := []mount.Mount{{Type: "overlay", Options: []string{"metacopy=on", "upperdir=/u", "workdir=/w", "lowerdir=/a:/b"}}}
	if diff := cmp.Diff(withoutData(in), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if len(in[0].Options) != 4 {
		t.Error("the mounts of the caller were changed")
	}
	for _, plain := range [][]mount.Mount{
		nil,
		{{Type: "bind", Source: "/a", Options: []string{"rw"}}},
		{{Type: "overlay", Options: []string{"index=off", "upperdir=/u", "lowerdir=/a:/b"}}},
	} {
		if diff := cmp.Diff(withoutData(plain), plain); diff != "" {
			t.Errorf("ordinary mounts (-got +want):\n%s", diff)
		}
	}
}

// containerd's own differ compares a container on a model with its image, by a read-only mount that it
// makes from the options.
func TestCommitContainer(t *testing.T) {
	n := newNode(t)
	n.upstream = storetest.NewFetcher([]byte("a"), []byte("b"), []byte("c"))
	table := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"a", "b", "d/c"}, []byte("a"), []byte("b"), []byte("c")), nil)
	n.apply(t, "", table)
	mounts := n.prepare(t, "container", table.Digest.String())
	dir := n.mount(t, mounts)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("changed"), 0o644),
		os.Remove(filepath.Join(dir, "b")), os.WriteFile(filepath.Join(dir, "new"), []byte("new"), 0o644)); err != nil {
		t.Fatal(err)
	}
	view, err := n.snap.View(n.ctx, "view", table.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	desc, err := walking.NewWalkingDiff(n.content).Compare(n.ctx, view, mounts, diff.WithMediaType(ocispec.MediaTypeImageLayer))
	if err != nil {
		t.Fatal(err)
	}
	p, err := content.ReadBlob(n.ctx, n.content, desc)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(p)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(b)
	}
	if diff := cmp.Diff(got, map[string]string{"a": "changed", ".wh.b": "", "new": "new"}); diff != "" {
		t.Errorf("layer (-got +want):\n%s", diff)
	}
}

// TestReason checks that the logged reason why a model is not shown early does not look like a failure.
func TestReason(t *testing.T) {
	err := fmt.Errorf("its files are known later: %w: %w", errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition)
	if got, want := reason(err), "its files are known later"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
