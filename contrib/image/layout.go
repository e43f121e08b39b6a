package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is the annotation by which `ctr images import` names an image.
const refName = "io.containerd.image.name"

// repository is where the image is published.
const repository = "ghcr.io/ballast-dev/ballast"

// A content is what an image has and runs.
type content struct {
	repository string // of its reference
	command    string
	volumes    map[string]struct{}
	layers     func(ctx context.Context, arch string) ([]mutate.Addendum, error)
}

// product is the image of ballast: what all architectures share, and the programs.
func (s *settings) product(ctx context.Context) (*content, error) {
	files, err := s.common(ctx)
	if err != nil {
		return nil, err
	}
	common, err := s.layer("certificates, licence and notices", files)
	if err != nil {
		return nil, err
	}
	layers := func(ctx context.Context, arch string) ([]mutate.Addendum, error) {
		files, err := programs(ctx, arch, s.Ours(), s.Fleet())
		if err != nil {
			return nil, err
		}
		layer, err := s.layer("ballast and ballastd", files)
		return []mutate.Addendum{common, layer}, err
	}
	return &content{repository: repository, command: "ballastd", layers: layers}, nil
}

// writeLayout writes an OCI layout whose only entry is an index of the images.
func (s *settings) writeLayout(ctx context.Context) error {
	describe := s.product
	if s.demo {
		describe = s.demonstration
	}
	what, err := describe(ctx)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range s.archs {
		img, err := s.image(ctx, arch, what)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	index = mutate.Annotations(index, s.annotations()).(v1.ImageIndex)
	to, err := layout.Write(s.layout, empty.Index)
	if err != nil {
		return err
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: what.repository + ":" + s.Version})); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Println(digest)
	return err
}

// image returns the image for an architecture.
func (s *settings) image(ctx context.Context, arch string, what *content) (v1.Image, error) {
	layers, err := what.layers(ctx, arch)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, layers...); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: s.epoch}
	// As in the Dockerfile.
	config.Config = v1.Config{
		Env: []string{"PATH=/" + binDir}, Cmd: []string{what.command}, WorkingDir: "/", Volumes: what.volumes, Labels: s.annotations(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, s.annotations()).(v1.Image), nil
}

// layer returns files as a layer.
func (s *settings) layer(what string, files []file) (mutate.Addendum, error) {
	p, err := archive(files, s.epoch)
	if err != nil {
		return mutate.Addendum{}, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil },
		tarball.WithMediaType(types.OCILayer))
	return mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: s.epoch}, CreatedBy: "make image", Comment: what}}, err
}

// annotations describe the image.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
func (s *settings) annotations() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "ballast",
		"org.opencontainers.image.description": "AI models as images of containerd",
		"org.opencontainers.image.source":      "https://github.com/ballast-dev/ballast",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.Version,
		"org.opencontainers.image.revision":    s.Commit.ID,
		"org.opencontainers.image.created":     s.epoch.Format(time.RFC3339),
	}
}
