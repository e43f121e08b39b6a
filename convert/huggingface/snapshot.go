package huggingface

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A snapshot is the manifest of files of a commit.
type snapshot struct {
	repo      string
	commit    string
	selection string // the selection that chose it; empty if unknown
	manifest  []byte
	config    []byte
	paths     map[digest.Digest]string // of one file per digest
	largest   string                   // path of the largest file

	digest, configDigest digest.Digest
}

// newSnapshot makes the manifest of files, which all have digests. It depends only on the commit
// and the files.
func newSnapshot(repo, commit string, files []file) (*snapshot, error) {
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no files at commit %s: %w", repo, commit, errdefs.ErrInvalidArgument)
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, ArtifactType: mediatype.ModelPackManifest,
		Annotations: map[string]string{ocispec.AnnotationRevision: commit},
	}
	cfg := convert.Config{Descriptor: convert.ModelDescriptor{Revision: commit}, ModelFS: convert.ModelFS{Type: "layers"}}
	s := &snapshot{repo: repo, commit: commit, paths: map[digest.Digest]string{}}
	s.largest = slices.MaxFunc(files, func(a, b file) int { return cmp.Compare(a.size, b.size) }).path
	for _, f := range files {
		s.paths[f.digest] = f.path
		cfg.ModelFS.DiffIDs = append(cfg.ModelFS.DiffIDs, f.digest)
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: mediatype.Layer(mediatype.FormatModelPack, convert.KindByPath(f.path), filetable.ArchiveNone, filetable.CodecNone),
			Digest:    f.digest, Size: f.size, Annotations: map[string]string{mediatype.AnnotationFilepath: f.path},
		})
	}
	var err error
	if s.config, err = json.Marshal(cfg); err != nil {
		return nil, err
	}
	s.configDigest = digest.FromBytes(s.config)
	m.Config = ocispec.Descriptor{MediaType: mediatype.ModelPackConfig, Digest: s.configDigest, Size: int64(len(s.config)), Data: s.config}
	if s.manifest, err = json.Marshal(m); err != nil {
		return nil, err
	}
	s.digest = digest.FromBytes(s.manifest)
	if len(s.manifest) > convert.MaxManifestSize {
		return nil, fmt.Errorf("%s has too many files: its manifest has %d bytes, more than %d: %w", repo, len(s.manifest), convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	return s, nil
}

// parseSnapshot is the reverse of newSnapshot.
func parseSnapshot(repo string, p []byte) (*snapshot, error) {
	m, err := convert.ParseManifest(p)
	if err != nil {
		return nil, err
	}
	s := &snapshot{
		repo: repo, commit: m.Annotations[ocispec.AnnotationRevision], manifest: p, config: m.Config.Data, paths: map[digest.Digest]string{},
		digest: m.Digest, configDigest: m.Config.Digest,
	}
	if !commitRE.MatchString(s.commit) || s.config == nil || len(m.Layers) == 0 {
		return nil, fmt.Errorf("manifest %s is not of the Hub: %w", m.Digest, errdefs.ErrInvalidArgument)
	}
	for _, l := range m.Layers {
		if s.paths[l.Digest], err = filetable.CleanPath(mediatype.Filepath(l.Annotations)); err != nil {
			return nil, err
		}
	}
	s.largest = s.paths[slices.MaxFunc(m.Layers, func(a, b convert.Descriptor) int { return cmp.Compare(a.Size, b.Size) }).Digest]
	return s, nil
}
