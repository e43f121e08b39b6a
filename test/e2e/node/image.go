package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// BusyboxPath is the static busybox of the machine.
const BusyboxPath = "/usr/bin/busybox"

// epoch is the time of every file in generated images, so that their digests are constant.
var epoch = time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)

// File is a member of an image layer.
type File struct {
	Path string // with a trailing slash: a directory
	Mode int64
	Data []byte
	Link string // if set: a symbolic link
}

// applets are the busybox commands in the image.
var applets = []string{"sh", "cat", "cp", "find", "ls", "mkdir", "readlink", "rm", "sha256sum", "sleep", "sort", "stat", "tee", "test", "touch", "true", "wc", "xargs"}

// Busybox returns an ordinary image of two gzip layers, of which the second hides, replaces and
// adds files: /data then has "kept" (setuid), "changed" with content "after", and dir/new, but
// neither "removed" nor dir/old. Its command runs until it is killed.
func Busybox(t TB) Artifact { return BusyboxFor(t, "amd64", BusyboxPath) }

// BusyboxFor is Busybox for another architecture, with the path of a static busybox for it.
func BusyboxFor(t TB, architecture, path string) Artifact {
	t.Helper()
	bin, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("busybox (run `make tools`): %v", err)
	}
	first := []File{
		{Path: "bin/", Mode: 0o755},
		{Path: "bin/busybox", Mode: 0o755, Data: bin},
		{Path: "tmp/", Mode: 0o1777},
		{Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/bin/sh\n")},
		{Path: "data/", Mode: 0o755},
		{Path: "data/kept", Mode: 0o4755, Data: []byte("kept\n")},
		{Path: "data/removed", Mode: 0o644, Data: []byte("removed\n")},
		{Path: "data/changed", Mode: 0o644, Data: []byte("before\n")},
		{Path: "data/dir/", Mode: 0o755},
		{Path: "data/dir/old", Mode: 0o644, Data: []byte("old\n")},
	}
	for _, a := range applets {
		first = append(first, File{Path: "bin/" + a, Link: "busybox"})
	}
	second := []File{
		{Path: "data/", Mode: 0o755},
		{Path: "data/.wh.removed"},
		{Path: "data/changed", Mode: 0o600, Data: []byte("after\n")},
		{Path: "data/dir/", Mode: 0o755},
		{Path: "data/dir/.wh..wh..opq"},
		{Path: "data/dir/new", Mode: 0o640, Data: []byte("new\n")},
	}
	return imageFor(t, architecture, []string{"/bin/sh", "-c", "trap exit TERM; sleep 1000000 & wait"}, first, second)
}

// Image returns an ordinary OCI image for linux/amd64 with a gzip layer for each list.
func Image(t TB, cmd []string, layers ...[]File) Artifact {
	return imageFor(t, "amd64", cmd, layers...)
}

func imageFor(t TB, architecture string, cmd []string, layers ...[]File) Artifact {
	t.Helper()
	a := Artifact{MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{}}
	put := func(mediaType string, p []byte) ocispec.Descriptor {
		d := digest.FromBytes(p)
		a.Blobs[d] = p
		return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(p))}
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: architecture},
		Config:   ocispec.ImageConfig{Cmd: cmd, Env: []string{"PATH=/bin"}},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	for _, files := range layers {
		plain := layerTar(t, files)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain))
		var z bytes.Buffer
		zw := gzip.NewWriter(&z)
		if _, err := zw.Write(plain); err != nil {
			t.Fatalf("gzip: %v", err)
		}
		if err := zw.Close(); err != nil {
			t.Fatalf("gzip: %v", err)
		}
		m.Layers = append(m.Layers, put(ocispec.MediaTypeImageLayerGzip, z.Bytes()))
	}
	m.Config = put(ocispec.MediaTypeImageConfig, encode(t, config))
	a.Manifest = encode(t, m)
	return a
}

func encode(t TB, v any) []byte {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("encode %T: %v", v, err)
	}
	return p
}

func layerTar(t TB, files []File) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Mode: f.Mode, Size: int64(len(f.Data)), ModTime: epoch, Format: tar.FormatPAX}
		switch {
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		case f.Path[len(f.Path)-1] == '/':
			h.Typeflag = tar.TypeDir
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("layer: %v", err)
		}
		if _, err := w.Write(f.Data); err != nil {
			t.Fatalf("layer: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("layer: %v", err)
	}
	return buf.Bytes()
}

// DigestServer is an image that is started as that of a model server, and prints the digest of the model.
func DigestServer(t TB) Artifact {
	t.Helper()
	return entrypoint(t, Busybox(t), "/bin/sh", "-c", `sha256sum "$1"; trap exit TERM; sleep 1000000 & wait`) // --model FILE
}
