package convert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Builder collects the files of a model while its layers are parsed, and checks that they do not
// conflict. Its errors name the layer.
type Builder struct {
	manifest *Manifest
	format   mediatype.Format

	layers   []Layer
	blobs    []filetable.Blob
	at       map[digest.Digest]int // index in layers and blobs
	files    []placed
	tars     []placedTar
	unpacks  []filetable.Unpack
	archives map[filetable.Unpack]bool // those of tars and unpacks
	inlines  []placed
	config   []byte
	stacked  bool
}

// placedTar is an uncompressed archive whose headers are read later.
type placedTar struct {
	layer int
	path  string
}

// placed is a file with the layer it comes from.
type placed struct {
	filetable.File
	layer int // -1 for a generated file
}

// NewBuilder returns a Builder for the model of a manifest.
func NewBuilder(m *Manifest, f mediatype.Format) *Builder {
	return &Builder{manifest: m, format: f, at: map[digest.Digest]int{}, archives: map[filetable.Unpack]bool{}}
}

// A Place describes the content of a layer and where it goes.
type Place struct {
	Kind    mediatype.Kind
	Archive filetable.Archive
	Codec   filetable.Codec

	// Path is the path of the file. For an archive it is the path in the origin, which can be
	// empty; see filetable.Unpack.
	Path string

	// DiffID is the digest of the uncompressed layer, if the origin has it.
	DiffID digest.Digest

	Mode     uint32 // permission bits of the file; zero means 0644
	UID, GID uint32
	ModTime  time.Time
}

// maxSamePath limits the files with one path whose content is not yet known.
const maxSamePath = 16

// parallelTars is the number of archives whose headers are read concurrently.
const parallelTars = 16

// defaultMode is the mode of a file without a mode in the origin.
const defaultMode = 0o644

// AddLayers adds all layers of the manifest, at the places that place returns for them in order.
func (b *Builder) AddLayers(place func(i int, l Descriptor) (Place, error)) error {
	for i, l := range b.manifest.Layers {
		p, err := place(i, l)
		if err != nil {
			return b.layerError(i, err)
		}
		if err := b.Add(i, p); err != nil {
			return err
		}
	}
	return nil
}

// Add adds layer i of the manifest.
func (b *Builder) Add(i int, p Place) error {
	if err := b.add(i, p); err != nil {
		return b.layerError(i, err)
	}
	return nil
}

func (b *Builder) layerError(i int, err error) error {
	return fmt.Errorf("layer %d (%s): %w", i, b.manifest.Layers[i].Digest, err)
}

func (b *Builder) add(i int, p Place) error {
	if p.Path != "" || p.Archive == filetable.ArchiveNone {
		clean, err := filetable.CleanPath(p.Path)
		if err != nil {
			return err
		}
		p.Path = clean
	}
	if p.Codec == filetable.CodecNone && p.DiffID != "" && p.DiffID != b.manifest.Layers[i].Digest {
		return fmt.Errorf("not compressed, but the config gives it diffID %s: %w", p.DiffID, errdefs.ErrInvalidArgument)
	}
	if err := b.addBlob(i, p); err != nil {
		return err
	}
	if p.Archive == filetable.ArchiveNone {
		b.addFile(i, p)
		return nil
	}
	u := filetable.Unpack{Blob: b.manifest.Layers[i].Digest, As: p.Path}
	if b.stacked {
		u.Layer = i
	}
	switch {
	case b.archives[u]:
	case p.Codec == filetable.CodecNone:
		b.tars = append(b.tars, placedTar{i, p.Path})
	default:
		b.unpacks = append(b.unpacks, u)
	}
	b.archives[u] = true
	return nil
}

// addBlob adds the blob of layer i, unless it is present.
func (b *Builder) addBlob(i int, p Place) error {
	desc := b.manifest.Layers[i]
	if at, ok := b.at[desc.Digest]; ok {
		have := &b.blobs[at]
		if have.Archive != p.Archive || have.Codec != p.Codec {
			return fmt.Errorf("the same blob is also layer %d, with another type: %w", have.Layer, errdefs.ErrInvalidArgument)
		}
		if have.DiffID != "" && p.DiffID != "" && p.Codec != filetable.CodecNone && have.DiffID != p.DiffID {
			return fmt.Errorf("the same blob is also layer %d, with another diffID: %w", have.Layer, errdefs.ErrInvalidArgument)
		}
		return nil
	}
	blob := filetable.Blob{Digest: desc.Digest, Size: desc.Size, Archive: p.Archive, Codec: p.Codec, Layer: i}
	if p.Codec != filetable.CodecNone {
		blob.DiffID = p.DiffID
	}
	b.at[desc.Digest] = len(b.blobs)
	b.blobs = append(b.blobs, blob)
	b.layers = append(b.layers, Layer{
		Desc:      desc.Descriptor,
		Kind:      p.Kind,
		Path:      p.Path,
		MediaType: mediatype.Layer(mediatype.FormatModelPack, p.Kind, p.Archive, p.Codec),
	})
	return nil
}

func (b *Builder) addFile(i int, p Place) {
	desc := b.manifest.Layers[i]
	b.files = append(b.files, placed{layer: i, File: filetable.File{
		Path:    p.Path,
		Type:    filetable.TypeReg,
		Mode:    cmp.Or(p.Mode&0o777, defaultMode),
		UID:     p.UID,
		GID:     p.GID,
		ModTime: p.ModTime,
		Size:    desc.Size,
		Digest:  desc.Digest,
		Source:  &filetable.Source{Blob: desc.Digest, Size: desc.Size},
	}})
}

// readTars reads the headers of all uncompressed archives, several concurrently, because each takes
// a few requests. If several fail, the error of the first layer is returned.
func (b *Builder) readTars(ctx context.Context, a Artifact) error {
	var layers []int // the first layer of each blob
	members := map[digest.Digest][]filetable.Member{}
	for _, t := range b.tars {
		d := b.manifest.Layers[t.layer].Digest
		if _, ok := members[d]; !ok {
			members[d] = nil
			layers = append(layers, t.layer)
		}
	}
	read := make([][]filetable.Member, len(layers))
	var count atomic.Int64
	err := Parallel(len(layers), parallelTars, func(n int) (err error) {
		if read[n], err = readTar(ctx, a, b.manifest.Layers[layers[n]].Descriptor, &count); err != nil {
			return b.layerError(layers[n], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, i := range layers {
		d := b.manifest.Layers[i].Digest
		members[d] = read[n]
		b.blobs[b.at[d]].Index = filetable.IndexDigest(read[n])
	}
	for _, t := range b.tars {
		d := b.manifest.Layers[t.layer].Digest
		if err := filetable.CheckFiles(len(b.files) + len(members[d])); err != nil {
			return b.layerError(t.layer, err)
		}
		b.addMembers(t, d, members[d])
	}
	return nil
}

func readTar(ctx context.Context, a Artifact, desc ocispec.Descriptor, count *atomic.Int64) ([]filetable.Member, error) {
	r, err := a.BlobAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	return filetable.TarIndexOf(r, desc.Size, count)
}

func (b *Builder) addMembers(t placedTar, d digest.Digest, members []filetable.Member) {
	for _, m := range filetable.PlaceTar(members, t.path) {
		f := m.File()
		if m.Type == filetable.TypeReg {
			f.Source = &filetable.Source{Blob: d, Offset: m.Offset, Size: m.Size}
		}
		b.files = append(b.files, placed{layer: t.layer, File: f})
	}
}

// Generate adds a file with generated content. If the model has a file at the path, the generated
// file gets the next free name of path-2, path-3 and so on.
func (b *Builder) Generate(p string, content []byte) {
	b.inlines = append(b.inlines, placed{layer: -1, File: filetable.File{
		Path:   p,
		Type:   filetable.TypeReg,
		Mode:   defaultMode,
		Size:   int64(len(content)),
		Digest: digest.FromBytes(content),
		Source: &filetable.Source{Inline: content},
	}})
}

// KeepConfig keeps the config of the origin, byte for byte.
func (b *Builder) KeepConfig(p []byte) { b.config = p }

// Stack declares that the layers are those of an image: later ones win, and whiteouts apply. It
// must be called before Add.
func (b *Builder) Stack() { b.stacked = true }

// isStacked reports whether stacking the layers makes a difference, or may make one.
func (b *Builder) isStacked() bool {
	if !b.stacked || len(b.unpacks) > 0 {
		return b.stacked
	}
	return slices.ContainsFunc(b.files, func(f placed) bool { return filetable.IsWhiteout(f.Path) }) ||
		len(slices.CompactFunc(slices.Clone(b.files), func(x, y placed) bool { return x.Path == y.Path })) < len(b.files) ||
		checkParents(b.files) != nil
}

// Model returns the model with the given config. It reads the headers of uncompressed archives from
// a, and the tables of contents of chunked ones. Layers with different content for one path are an
// error, as is a path that is both a file and a directory. Equal files are merged.
func (b *Builder) Model(ctx context.Context, a Artifact, cfg Config) (*Model, error) {
	if len(b.blobs) == 0 {
		return nil, fmt.Errorf("no layers with files: %w", errdefs.ErrInvalidArgument)
	}
	if err := b.readTars(ctx, a); err != nil {
		return nil, err
	}
	if err := b.readChunks(ctx, a); err != nil {
		return nil, err
	}
	slices.SortStableFunc(b.files, func(x, y placed) int {
		return cmp.Or(cmp.Compare(x.Path, y.Path), cmp.Compare(x.layer, y.layer))
	})
	files, stacked := b.files, b.isStacked()
	if !stacked {
		var err error
		if files, err = b.merge(); err != nil {
			return nil, err
		}
	}
	docs := b.documents(a)
	files = b.addGenerated(files)
	if err := checkParents(files); err != nil && !stacked {
		return nil, err
	}
	m := &Model{
		Table: filetable.Table{
			Version: filetable.Version,
			Origin:  filetable.Origin{Format: string(b.format), Digest: b.manifest.Digest, Mapping: MappingVersion},
			Blobs:   b.blobs,
			Unpacks: b.unpacks,
		},
		Config:    cfg,
		Layers:    b.layers,
		Documents: docs,
	}
	if stacked {
		m.Table.Version, m.Table.Stacked = filetable.StackedVersion, true
	}
	for _, f := range files {
		if stacked && f.layer >= 0 {
			f.Layer = f.layer
		} else if stacked {
			f.Layer = len(b.manifest.Layers) // generated files are on top
		}
		m.Table.Files = append(m.Table.Files, f.File)
	}
	m.Config.ModelFS = ModelFS{Type: "layers"}
	for _, blob := range b.blobs {
		m.Config.ModelFS.DiffIDs = append(m.Config.ModelFS.DiffIDs, cmp.Or(blob.DiffID, blob.Digest))
	}
	if err := m.Table.Validate(); err != nil {
		return nil, err
	}
	return m, nil
}

// merge returns the sorted files without duplicates. Two regular files with the same path and size,
// of which a digest is unknown, both stay; the store compares them after reading them.
func (b *Builder) merge() ([]placed, error) {
	var out []placed
	for _, f := range b.files {
		same := false
		for j := len(out) - 1; j >= 0 && out[j].Path == f.Path && !same; j-- {
			if len(out)-j > maxSamePath {
				return nil, fmt.Errorf("layer %d: path %q more than %d times: %w", f.layer, f.Path, maxSamePath, errdefs.ErrInvalidArgument)
			}
			var err error
			if same, err = equal(out[j].File, f.File); err != nil {
				if out[j].layer == f.layer {
					return nil, fmt.Errorf("layer %d: path %q twice: %w: %w", f.layer, f.Path, err, errdefs.ErrInvalidArgument)
				}
				return nil, fmt.Errorf("layers %d and %d: path %q: %w: %w", out[j].layer, f.layer, f.Path, err, errdefs.ErrInvalidArgument)
			}
		}
		if !same {
			out = append(out, f)
		}
	}
	return out, nil
}

// equal reports whether x and y, which have the same path, are known to be equal. It returns an
// error if they are known to differ.
func equal(x, y filetable.File) (bool, error) {
	switch {
	case x.Type != y.Type:
		return false, fmt.Errorf("a %s and a %s", x.Type, y.Type)
	case x.Type == filetable.TypeDir:
		return true, nil
	case x.Type == filetable.TypeSymlink:
		if x.Target != y.Target {
			return false, errors.New("links with different targets")
		}
		return true, nil
	case x.Size != y.Size:
		return false, fmt.Errorf("different content (%d and %d bytes)", x.Size, y.Size)
	case x.Size == 0:
		return true, nil
	case x.Digest != "" && y.Digest != "":
		if x.Digest != y.Digest {
			return false, errors.New("different content")
		}
		return true, nil
	}
	return x.Source.Blob == y.Source.Blob && x.Source.Offset == y.Source.Offset, nil
}

// addGenerated adds the generated files, renamed if they conflict with files of the model.
func (b *Builder) addGenerated(files []placed) []placed {
	taken := map[string]bool{} // of files, links and directories
	notDir := map[string]bool{}
	for _, f := range files {
		notDir[f.Path] = f.Type != filetable.TypeDir
		for p := f.Path; p != "."; p = path.Dir(p) {
			taken[p] = true
		}
	}
	free := func(p string) bool {
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if notDir[dir] {
				return false
			}
		}
		return !taken[p]
	}
	for _, f := range b.inlines {
		want := f.Path
		for n := 2; !free(f.Path); n++ {
			f.Path = fmt.Sprintf("%s-%d", want, n)
			if dir, rest, ok := strings.Cut(want, "/"); ok && notDir[dir] {
				f.Path = fmt.Sprintf("%s-%d/%s", dir, n, rest)
			}
		}
		taken[f.Path] = true
		files = append(files, f)
	}
	slices.SortStableFunc(files, func(x, y placed) int { return cmp.Compare(x.Path, y.Path) })
	return files
}

// checkParents returns an error that names the layers if a path is both a file and a directory.
func checkParents(files []placed) error {
	at := make(map[string]placed, len(files))
	for _, f := range files {
		at[f.Path] = f
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if d, ok := at[dir]; ok && d.Type != filetable.TypeDir {
				what := "file"
				if d.Type == filetable.TypeSymlink {
					what = "symbolic link"
				}
				return fmt.Errorf("layers %d and %d: %q is a %s, but %q is below it: %w",
					d.layer, f.layer, dir, what, f.Path, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}
