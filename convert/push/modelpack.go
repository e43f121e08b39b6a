package push

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

// maxInlineOrigin is the largest document of an origin that is kept in an annotation, in bytes.
const maxInlineOrigin = 4 << 10

// originDir is where larger documents of the origin are among the files.
const originDir = "origin/"

// A dialect is a spelling of ModelPack.
type dialect struct {
	format             mediatype.Format
	manifest, config   string // media types
	filepath, metadata string // annotation keys
	encode             func(convert.Config) []byte
}

func dialectOf(f Form) dialect {
	if f == FormCNAI {
		return dialect{mediatype.FormatCNAI, mediatype.CNAIManifest, mediatype.CNAIConfig,
			mediatype.CNAIFilepath, mediatype.CNAIMetadata, encodeCNAI}
	}
	return dialect{mediatype.FormatModelPack, mediatype.ModelPackManifest, mediatype.ModelPackConfig,
		mediatype.AnnotationFilepath, mediatype.AnnotationMetadata, func(c convert.Config) []byte { return encode(c) }}
}

// kindOrder is the order of layers.
var kindOrder = []mediatype.Kind{
	mediatype.KindWeightConfig, mediatype.KindWeight, mediatype.KindCode, mediatype.KindDoc, mediatype.KindDataset,
}

// planModelPack plans a ModelPack or CNAI artifact.
func (c *conversion) planModelPack(ctx context.Context) (*plan, error) {
	files, err := c.files(ctx)
	if err != nil {
		return nil, err
	}
	annotations := c.origin()
	files = c.keepOrigin(files, annotations)
	if !c.o.Tar {
		files = c.withoutLinks(files)
	}
	files = c.withoutFullDirs(files)
	slices.SortStableFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(slices.Index(kindOrder, a.kind), slices.Index(kindOrder, b.kind)), cmp.Compare(a.Path, b.Path))
	})
	d, p := dialectOf(c.o.Form), &plan{}
	c.hidden(p)
	for _, f := range files {
		l, err := c.fileLayer(d, f)
		if err != nil {
			return nil, err
		}
		p.layers = append(p.layers, l)
	}
	if len(p.layers) == 0 {
		return nil, fmt.Errorf("the model has no files: %w", errdefs.ErrInvalidArgument)
	}
	said := describe(ctx, files)
	cfg := c.config(said)
	image.Annotate(annotations, c.src.Model.Runner)
	contextLength(annotations, cmp.Or(c.src.Model.ContextLength, said.ContextLength))
	c.archivesLost()
	p.documents = func() (documents, error) { return modelPackDocuments(d, cfg, p.layers, annotations) }
	return p, nil
}

// fileLayer returns the layer of one file.
func (c *conversion) fileLayer(d dialect, f file) (*layer, error) {
	kind := cmp.Or(f.kind, convert.KindByPath(f.Path))
	// CNAI has a type for raw weights, and none for other raw files.
	archived := c.o.Tar || f.Type != filetable.TypeReg || d.format == mediatype.FormatCNAI && kind != mediatype.KindWeight
	var l *layer
	if archived {
		var err error
		if l, err = tarLayer([]file{f}, mediatype.Layer(d.format, kind, filetable.ArchiveTar, filetable.CodecNone)); err != nil {
			return nil, err
		}
	} else {
		l = &layer{open: f.open, fromBlob: f.fromBlob, desc: ocispec.Descriptor{
			MediaType: mediatype.Layer(d.format, kind, filetable.ArchiveNone, filetable.CodecNone), Digest: f.Digest, Size: f.Size}}
		if d.format == mediatype.FormatCNAI {
			l.desc.MediaType = mediatype.CNAIWeight
		}
	}
	l.name = f.Path
	title := f.Path // by which tools that know no models name the file that they write
	if archived {
		title += ".tar"
	}
	l.desc.Annotations = map[string]string{d.filepath: f.Path, d.metadata: string(encode(metadataOf(f))), mediatype.AnnotationTitle: title}
	return l, nil
}

// A fileMetadata is the value of the metadata annotation. Owners are not those of the machine that
// packed the model.
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

// typeflags are the numbers that writers of ModelPack put in metadata.
var typeflags = map[string]int{filetable.TypeReg: 0, filetable.TypeSymlink: 2, filetable.TypeDir: 5}

func metadataOf(f file) fileMetadata {
	m := fileMetadata{Name: path.Base(f.Path), Mode: f.Mode, Size: f.Size, ModTime: f.ModTime.UTC(), Typeflag: typeflags[f.Type]}
	if f.ModTime.IsZero() {
		m.ModTime = time.Unix(0, 0).UTC()
	}
	return m
}

// keepOrigin keeps the documents of the origin, in annotations or as files, unless files of the
// model are the same.
func (c *conversion) keepOrigin(files []file, annotations map[string]string) []file {
	have, paths := map[digest.Digest]bool{}, map[string]bool{}
	for _, f := range files {
		have[f.Digest], paths[f.Path] = true, true
	}
	for _, doc := range []struct {
		p         []byte
		key, name string
	}{
		{c.src.Model.Documents.Manifest, mediatype.AnnotationOriginManifest, "manifest.json"},
		{c.src.Model.Documents.Config, mediatype.AnnotationOriginConfig, "config.json"},
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
		files = append(files, file{kind: mediatype.KindDoc, open: opener(doc.p), File: filetable.File{
			Path: name, Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(doc.p)), Digest: d}})
	}
	return files
}

// withoutLinks puts copies of their targets in the place of symbolic links: a raw layer is a regular
// file.
func (c *conversion) withoutLinks(files []file) []file {
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
			c.lose("symbolic link %q to %q, which is not a file of the model", f.Path, f.Target)
			continue
		}
		c.lose("symbolic link %q: it is a file with the content of %q", f.Path, f.Target)
		target.Path = f.Path
		out = append(out, target)
	}
	return out
}

// withoutFullDirs leaves out directories that have something in them: they are there because of that.
func (c *conversion) withoutFullDirs(files []file) []file {
	full := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "." && !full[dir]; dir = path.Dir(dir) {
			full[dir] = true
		}
	}
	return slices.DeleteFunc(files, func(f file) bool { return f.Type == filetable.TypeDir && full[f.Path] })
}

// archivesLost notes that an origin with archives can not be put together again from its files.
func (c *conversion) archivesLost() {
	archives, fragments := 0, 0
	for _, b := range c.src.Model.Table.Blobs {
		switch {
		case b.Archive == filetable.ArchiveFragments:
			fragments++
		case !isFile(b):
			archives++
		}
	}
	if archives > 0 {
		c.lose("%d archives of the origin: their files are kept, not their bytes", archives)
	}
	if fragments > 0 {
		c.lose("%d blobs of the origin: they are put together to files", fragments)
	}
}

// modelPackDocuments returns the manifest and the config of an artifact.
func modelPackDocuments(d dialect, cfg convert.Config, layers []*layer, annotations map[string]string) (documents, error) {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest,
		ArtifactType: d.manifest, Annotations: annotations,
	}
	cfg.ModelFS = convert.ModelFS{Type: "layers"}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.desc)
		cfg.ModelFS.DiffIDs = append(cfg.ModelFS.DiffIDs, l.desc.Digest)
	}
	p := d.encode(cfg)
	m.Config = ocispec.Descriptor{MediaType: d.config, Digest: digest.FromBytes(p), Size: int64(len(p))}
	docs := documents{encode(m), mediatype.OCIManifest, [][]byte{p}}
	if n := len(docs.manifest); n > maxManifest {
		return documents{}, fmt.Errorf("the manifest has %d bytes, and registries take %d: %w", n, maxManifest, errdefs.ErrNotImplemented)
	}
	if d.format == mediatype.FormatModelPack {
		if err := Validate(docs.manifest, p); err != nil {
			return documents{}, fmt.Errorf("internal error: %w", err)
		}
	}
	return docs, nil
}

// maxManifest is the largest manifest that all registries take, in bytes.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests
const maxManifest = 4 << 20
