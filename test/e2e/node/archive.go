package node

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// LayoutFiles returns the files of an OCI layout with models, by the names in its index. An empty name is none.
func LayoutFiles(t TB, models map[string]*converttest.Built) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	idx := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		b := models[name]
		add := func(p []byte) ocispec.Descriptor {
			d := digest.FromBytes(p)
			files["blobs/sha256/"+d.Encoded()] = p
			return ocispec.Descriptor{Digest: d, Size: int64(len(p))}
		}
		for _, p := range b.Blobs {
			add(p)
		}
		desc := add(b.Manifest)
		desc.MediaType = ocispec.MediaTypeImageManifest
		if name != "" {
			desc.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "v1"}
		}
		idx.Manifests = append(idx.Manifests, desc)
	}
	p, err := json.Marshal(idx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	files["index.json"] = p
	return files
}

// TarOf returns a tar file of files, sorted by name as containerd writes it: the index comes after the blobs.
func TarOf(t TB, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatalf("%v", err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("%v", err)
	}
	return b.Bytes()
}

// Layout reads the image for an architecture from an OCI layout with one index.
func Layout(t TB, layout, arch string) Artifact {
	t.Helper()
	a := Artifact{MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{}}
	blob := func(d digest.Digest) []byte {
		p, err := os.ReadFile(filepath.Join(layout, "blobs", d.Algorithm().String(), d.Encoded()))
		if err != nil || digest.FromBytes(p) != d {
			t.Fatalf("blob %s: %v", d, err)
		}
		return p
	}
	decode := func(p []byte, v any) {
		if err := json.Unmarshal(p, v); err != nil {
			t.Fatalf("%v", err)
		}
	}
	top, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	var index, images ocispec.Index
	decode(top, &index)
	decode(blob(index.Manifests[0].Digest), &images)
	for _, d := range images.Manifests {
		if d.Platform != nil && d.Platform.Architecture == arch {
			a.Manifest = blob(d.Digest)
			var m ocispec.Manifest
			decode(a.Manifest, &m)
			for _, l := range append(m.Layers, m.Config) {
				a.Blobs[l.Digest] = blob(l.Digest)
			}
			return a
		}
	}
	t.Fatalf("no image for %s in %+v", arch, images.Manifests)
	return a
}
