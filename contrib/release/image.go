package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/contrib/release/build"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	roots "golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	refName    = "io.containerd.image.name"          // the annotation by which `ctr images import` names an image
	repository = "ghcr.io/ballast-dev/ballast"       // where the image is published
	binDir     = "usr/local/bin"                     // in the image
	certFile   = "etc/ssl/certs/ca-certificates.crt" // in the image, where Go looks first
)

// A container is what an image has and runs.
type container struct {
	part, file string // names of the layout and its tar: for the part alone, and in a release
	repository string // of its reference
	command    string
	volumes    map[string]struct{}
	archs      []string
	layers     func(ctx context.Context, arch string) ([]layer, error)
}

// A layer is the files of a layer, and what its history says of them.
type layer struct {
	comment string
	files   tree
}

// image writes the image of ballast.
func (r *release) image(ctx context.Context) error {
	return r.writeImage(ctx, container{
		part: "image", file: "ballast_" + r.number() + "_image", repository: repository, command: "ballastd", archs: r.archs, layers: r.product,
	})
}

// product returns what all architectures share, and the programs.
func (r *release) product(ctx context.Context, arch string) ([]layer, error) {
	shared, err := r.tree("image", func(t tree) error { return r.shared(ctx, t) })
	if err != nil {
		return nil, err
	}
	programs, err := r.tree("image-"+arch, func(t tree) error { return r.programs(ctx, arch, t, binDir, r.Ours(), r.Fleet()) })
	return []layer{{"certificates, licence and notices", shared}, {"the programs", programs}}, err
}

// root writes the files of the image for one architecture.
func (r *release) root(ctx context.Context) error {
	return errors.Join(r.shared(ctx, tree(r.out)), r.programs(ctx, r.archs[0], tree(r.out), binDir, r.Ours(), r.Fleet()))
}

// shared writes what all architectures share.
func (r *release) shared(ctx context.Context, t tree) error {
	modules, err := build.Modules(ctx, build.Archs, r.Ours(), r.Fleet())
	return errors.Join(err, t.write(certFile, certificates()), r.documents(t, modules))
}

// documents writes the licence and the notices of modules, and /tmp.
func (r *release) documents(t tree, modules []build.Module) error {
	const dir = "usr/share/doc/ballast/"
	return errors.Join(t.copy(dir+"LICENSE", filepath.Join(r.Source, "LICENSE")), t.write(dir+"NOTICES", build.Notices(modules)),
		os.Mkdir(t.path("tmp"), 0o777), os.Chmod(t.path("tmp"), 0o777|fs.ModeSticky))
}

// certificates returns the roots that are trusted without conditions, as PEM.
func certificates() []byte {
	var b bytes.Buffer
	for root := range roots.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return b.Bytes()
}

// writeImage writes an OCI layout whose only entry is an index of the images, and a tar of it. A release has the tar
// alone.
func (r *release) writeImage(ctx context.Context, c container) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range c.archs {
		img, err := r.imageFor(ctx, arch, c)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	index = mutate.Annotations(index, r.annotations()).(v1.ImageIndex)
	dir, file := filepath.Join(r.work, c.file), c.file+".tar"
	if r.only != nil {
		dir, file = filepath.Join(r.out, c.part), c.part+".tar"
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: c.repository + ":" + r.Version})); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return r.archive(file, tree(dir))
}

// imageFor returns the image for an architecture.
func (r *release) imageFor(ctx context.Context, arch string, c container) (v1.Image, error) {
	layers, err := c.layers(ctx, arch)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		a, err := r.addendum(l)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, a); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.Commit.Time}
	// As in the Dockerfile.
	config.Config = v1.Config{
		Env: []string{"PATH=/" + binDir}, Cmd: []string{c.command}, WorkingDir: "/", Volumes: c.volumes, Labels: r.annotations(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, r.annotations()).(v1.Image), nil
}

// addendum returns a layer.
func (r *release) addendum(l layer) (mutate.Addendum, error) {
	var b bytes.Buffer
	if err := l.files.tar(&b, r.Commit.Time); err != nil {
		return mutate.Addendum{}, err
	}
	blob, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	return mutate.Addendum{Layer: blob, History: v1.History{Created: v1.Time{Time: r.Commit.Time}, CreatedBy: "make image", Comment: l.comment}}, err
}

// annotations describe the image.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
func (r *release) annotations() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "ballast",
		"org.opencontainers.image.description": "AI models as images of containerd",
		"org.opencontainers.image.source":      "https://github.com/ballast-dev/ballast",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.Version,
		"org.opencontainers.image.revision":    r.Commit.ID,
		"org.opencontainers.image.created":     r.Commit.Time.Format(time.RFC3339),
	}
}
