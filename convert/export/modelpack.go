package export

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxInlineOrigin limits a document of an origin that is kept in an annotation, in bytes.
const maxInlineOrigin = 4 << 10

// originDir is the directory of larger documents of the origin among the files.
const originDir = "origin/"

// kindOrder is the order of layers.
var kindOrder = []mediatype.Kind{
	mediatype.KindWeightConfig, mediatype.KindWeight, mediatype.KindCode, mediatype.KindDoc, mediatype.KindDataset,
}

// A dialect has the names of ModelPack or of CNAI.
type dialect struct {
	format             mediatype.Format
	manifest, config   string // media types
	filepath, metadata string // annotation keys
	links              bool   // in tars; otherwise they are files
}

var (
	modelPack = dialect{mediatype.FormatModelPack, mediatype.ModelPackManifest, mediatype.ModelPackConfig, mediatype.AnnotationFilepath, mediatype.AnnotationMetadata, true}
	cnai      = dialect{mediatype.FormatCNAI, mediatype.CNAIManifest, mediatype.CNAIConfig, mediatype.CNAIFilepath, mediatype.CNAIMetadata, false}
)

// planModelPack plans a ModelPack artifact.
func (j *job) planModelPack(ctx context.Context) (*plan, error) {
	return j.planArtifact(ctx, modelPack, j.o.Tar)
}

// planCNAI plans a CNAI artifact, as modctl v0.2.2 builds it with --raw=false: a tar for each file, and the config of
// ModelPack. Links are files: modctl follows links when it builds, and leaves them out when it extracts.
func (j *job) planCNAI(ctx context.Context) (*plan, error) {
	return j.planArtifact(ctx, cnai, true)
}

// planArtifact plans an artifact with a raw layer, or a tar, for each file.
func (j *job) planArtifact(ctx context.Context, d dialect, tars bool) (*plan, error) {
	files, err := j.files(ctx)
	if err != nil {
		return nil, err
	}
	annotations := image.Origin(j.src.Model.Table.Origin)
	if files, err = j.placed(j.keepOrigin(files, annotations)); err != nil {
		return nil, err
	}
	if !tars || !d.links {
		files = j.withoutLinks(files)
	}
	files = withoutFullDirs(files)
	slices.SortStableFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(slices.Index(kindOrder, a.kind), slices.Index(kindOrder, b.kind)), cmp.Compare(a.Path, b.Path))
	})
	p := &plan{items: j.hidden()}
	for _, f := range files {
		it, err := d.item(f, tars)
		if err != nil {
			return nil, err
		}
		p.items = append(p.items, it)
	}
	size := 0
	for _, it := range p.items {
		if size += len(encode(it.desc)); it.desc.Digest == "" {
			size += digestSize
		}
	}
	if err := checkManifest(size, len(p.items)); err != nil { // before anything is sent
		return nil, err
	}
	if len(p.items) == 0 {
		return nil, fmt.Errorf("the model has no files: %w", errdefs.ErrInvalidArgument)
	}
	said := describe(ctx, files)
	j.found(said.Problems)
	cfg := j.config(said)
	image.Annotate(annotations, cmp.Or(j.src.Model.ContextLength, said.ContextLength), j.src.Model.Runner)
	if err := j.annotate(annotations); err != nil {
		return nil, err
	}
	j.archivesLost()
	p.documents = func(all []*item) (documents, error) {
		docs, err := d.documents(cfg, all, annotations)
		if !tars {
			docs.files = func() ([]filetable.File, error) { return rawFiles(all), nil }
		}
		return docs, err
	}
	return p, nil
}

// annotate adds the annotations of the publisher. Those of ballast, ModelPack and CNAI have a meaning for readers.
func (j *job) annotate(annotations map[string]string) error {
	for k, v := range j.o.Annotations {
		if mediatype.IsOwnAnnotation(k) {
			return fmt.Errorf("annotation %s is set by ballast: %w", k, errdefs.ErrInvalidArgument)
		}
		annotations[k] = v
	}
	return nil
}

// item returns the item of one file.
func (d dialect) item(f file, packed bool) (it *item, err error) {
	kind, title := cmp.Or(f.kind, convert.KindByPath(f.Path)), f.Path
	if packed || f.Type != filetable.TypeReg {
		title += ".tar"
		if it, err = tarItem(f.Path, []file{f}, mediatype.Layer(d.format, kind, filetable.ArchiveTar, filetable.CodecNone)); err != nil {
			return nil, err
		}
	} else {
		it = &item{name: f.Path, open: f.open, fromBlob: f.fromBlob, desc: ocispec.Descriptor{
			MediaType: mediatype.Layer(d.format, kind, filetable.ArchiveNone, filetable.CodecNone), Digest: f.Digest, Size: f.Size}}
	}
	it.desc.Annotations = map[string]string{d.filepath: f.Path, d.metadata: string(encode(metadataOf(f))),
		mediatype.AnnotationTitle: title} // the file name for tools without model support
	return it, nil
}

// A fileMetadata is the value of the metadata annotation.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/annotations.md
type fileMetadata struct {
	Name     string    `json:"name"`
	Mode     uint32    `json:"mode"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Size     int64     `json:"size"`
	ModTime  time.Time `json:"mtime"`
	Typeflag int       `json:"typeflag"`
}

// typeflags are the type numbers in ModelPack metadata.
var typeflags = map[string]int{filetable.TypeReg: 0, filetable.TypeSymlink: 2, filetable.TypeDir: 5}

func metadataOf(f file) fileMetadata {
	m := fileMetadata{Name: path.Base(f.Path), Mode: f.Mode, UID: f.UID, GID: f.GID, Size: f.Size, ModTime: f.ModTime.UTC(), Typeflag: typeflags[f.Type]}
	if f.ModTime.IsZero() {
		m.ModTime = time.Unix(0, 0).UTC()
	}
	return m
}

// keepOrigin keeps the documents of the origin, in annotations or as files, unless files of the
// model have the same content.
func (j *job) keepOrigin(files []file, annotations map[string]string) []file {
	have, paths := map[digest.Digest]bool{}, map[string]bool{}
	for _, f := range files {
		have[f.Digest], paths[f.Path] = true, true
	}
	for _, doc := range []struct {
		p         []byte
		key, name string
	}{
		{j.src.Model.Documents.Manifest, mediatype.AnnotationOriginManifest, "manifest.json"},
		{j.src.Model.Documents.Config, mediatype.AnnotationOriginConfig, "config.json"},
	} {
		d := digest.FromBytes(doc.p)
		switch {
		case len(doc.p) == 0 || have[d]:
			continue
		case len(doc.p) <= maxInlineOrigin:
			annotations[doc.key] = base64.StdEncoding.EncodeToString(doc.p)
			continue
		}
		name := originDir + doc.name
		for n := 2; paths[name] || paths[path.Dir(name)]; n++ {
			name = fmt.Sprintf("%s-%d/%s", path.Clean(originDir), n, doc.name)
		}
		files = append(files, file{kind: mediatype.KindDoc, open: contentOf(opener(doc.p)), File: filetable.File{
			Path: name, Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(doc.p)), Digest: d}})
	}
	return files
}

// withoutLinks replaces symbolic links by copies of their targets: a raw layer is a regular file.
func (j *job) withoutLinks(files []file) []file {
	at := map[string]file{}
	for _, f := range files {
		at[f.Path] = f
	}
	var out []file
	for _, f := range files {
		if f.Type != filetable.TypeSymlink {
			out = append(out, f)
			continue
		}
		target := f
		for n := 0; n < 40 && target.Type == filetable.TypeSymlink; n++ {
			target = at[path.Join(path.Dir(target.Path), target.Target)]
		}
		if target.Type != filetable.TypeReg {
			j.lose("symbolic link %q to %q, which is not a file of the model", f.Path, f.Target)
			continue
		}
		j.lose("symbolic link %q: it is a file with the content of %q", f.Path, f.Target)
		target.Path = f.Path
		out = append(out, target)
	}
	return out
}

// withoutFullDirs leaves out directories that are not empty, because their files imply them.
func withoutFullDirs(files []file) []file {
	full := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "." && !full[dir]; dir = path.Dir(dir) {
			full[dir] = true
		}
	}
	return slices.DeleteFunc(files, func(f file) bool { return f.Type == filetable.TypeDir && full[f.Path] })
}

// archivesLost records that an origin with archives cannot be restored from its files.
func (j *job) archivesLost() {
	archives, fragments := 0, 0
	for _, b := range j.src.Model.Table.Blobs {
		switch {
		case b.Archive == filetable.ArchiveFragments:
			fragments++
		case !isFile(b):
			archives++
		}
	}
	if archives > 0 {
		j.lose("%d archives of the origin: their files are kept, not their bytes", archives)
	}
	if fragments > 0 {
		j.lose("%d blobs of the origin: they are assembled into files", fragments)
	}
}

// documents returns the manifest and the config of an artifact.
func (d dialect) documents(cfg convert.Config, all []*item, annotations map[string]string) (documents, error) {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest,
		ArtifactType: d.manifest, Annotations: annotations,
	}
	cfg.ModelFS = convert.ModelFS{Type: "layers"}
	for _, s := range all {
		m.Layers = append(m.Layers, s.desc)
		cfg.ModelFS.DiffIDs = append(cfg.ModelFS.DiffIDs, s.desc.Digest)
	}
	docs := describedBy(m, d.config, encode(cfg))
	return docs, checkManifest(len(docs.manifest), len(all))
}

// checkManifest returns an error for a manifest that registries refuse.
func checkManifest(size, files int) error {
	if size <= maxManifest {
		return nil
	}
	return fmt.Errorf("the manifest would have %d bytes for %d files, and registries take %d; write it --as %s, or %s: %w",
		size, files, maxManifest, FormImage, takeFewer, errdefs.ErrNotImplemented)
}

// rawFiles returns the files that are raw layers, by path.
func rawFiles(all []*item) (files []filetable.File) {
	for _, s := range all {
		if t, err := mediatype.Parse(s.desc.MediaType); err == nil && t.Archive == filetable.ArchiveNone {
			files = append(files, filetable.File{Path: s.desc.Annotations[mediatype.AnnotationFilepath], Type: filetable.TypeReg, Size: s.desc.Size, Digest: s.desc.Digest})
		}
	}
	slices.SortFunc(files, func(a, b filetable.File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// takeFewer is advice for models with too many files.
const takeFewer = "take fewer files with --include and --exclude"

// digestSize is the size of a digest in a manifest, in bytes.
const digestSize = len("sha256:") + 64

// maxManifest limits a manifest to the size that all registries accept, in bytes.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests
const maxManifest = 4 << 20
