package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// The number of files hashed at the same time, and the bytes of each read.
const (
	parallelHashes = 4
	hashBuffer     = 1 << 20
)

// maxPointer limits a pointer of Git LFS, in bytes, and pointerStart is its first line.
// https://github.com/git-lfs/git-lfs/blob/v3.7.0/docs/spec.md#the-pointer
const maxPointer = 1024

var pointerStart = []byte("version https://git-lfs.github.com/spec/v1\n")

// A localFile is a file of a directory.
type localFile struct {
	path string      // in the model
	root *os.Root    // of name; nil for a file that the user named
	name string      // on disk
	was  fs.FileInfo // when it was found
	mode uint32
	size int64
	d    digest.Digest

	pointer bool // it has only the address of its content
}

// open opens the file. It returns errdefs.ErrFailedPrecondition if it is not the one that was found.
func (f *localFile) open() (*os.File, error) {
	r, info, err := f.openAny()
	if err == nil && !local.Same(f.was, info) {
		err = errors.Join(local.Changed(f.path), r.Close())
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openAny opens whatever regular file is there.
func (f *localFile) openAny() (*os.File, fs.FileInfo, error) {
	if f.root == nil {
		return local.OpenFile(f.name)
	}
	return local.Open(f.root, f.name)
}

// verified opens a file; the bytes read are compared with its digest at the end.
func (f *localFile) verified(context.Context) (io.ReadCloser, error) {
	r, err := f.open()
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{verify.NewReader(r, f.d, f.size), r}, nil
}

// Format makes models from directories and files without any packaging.
var Format = format.Format{
	Name: mediatype.FormatFiles,
	Place: &format.Place{
		Takes: func(n format.Name) bool { return n.IsPath },
		Open: func(ctx context.Context, _ format.Settings, name string) (*format.Source, error) {
			return Open(ctx, name)
		},
	},
}

// Open returns the source of a directory of model files, or of one file. The digests of files are
// computed, except those in file names of a snapshot of a model hub. Their headers and the front
// matter of README.md describe the model. The caller closes the source.
//
// Symbolic links are followed. They may lead to files in the directory and, from the snapshot of a
// hub's cache, to the blobs beside it; any other is refused. This holds also while another user
// changes the directory: every file is opened below the directory as it was opened first.
func Open(ctx context.Context, name string) (_ *format.Source, err error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file or directory: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	t := &tree{}
	defer func() {
		if err != nil {
			t.Close() // err is the reason
		}
	}()
	if info.IsDir() {
		err = t.scan(ctx, name)
	} else {
		err = t.one(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(t.files) == 0 {
		return nil, fmt.Errorf("%s: no files: %w", name, errdefs.ErrNotFound)
	}
	if err := hashAll(ctx, t.files); err != nil {
		return nil, err
	}
	s := &format.Source{Losses: t.losses, Close: t.Close}
	fetcher := localFiles{}
	for _, f := range t.files {
		fetcher[f.d] = f
		if f.pointer {
			s.Pointers = append(s.Pointers, f.path)
		}
	}
	if s.Model, err = localModel(t.files); err != nil {
		return nil, err
	}
	s.Fetcher = fetcher
	card := t.card(ctx)
	s.Describe = func(ctx context.Context, m *convert.Model) []string { return t.describe(ctx, m, card) }
	s.Problems = s.Describe(ctx, s.Model)
	return s, nil
}

// describe sets the config of a model of some of the files from their headers and the card of all, and returns what is
// wrong with them.
func (t *tree) describe(ctx context.Context, m *convert.Model, card convert.Config) (problems []string) {
	at := map[string]*localFile{}
	for _, f := range t.files {
		at[f.path] = f
	}
	var list []headers.File
	var paths []string
	for _, c := range m.Table.Files {
		f := at[c.Path]
		if paths = append(paths, f.path); f.pointer {
			problems = append(problems, headers.Problem{Path: f.path, Text: "a pointer of Git LFS, not the file"}.String())
			continue
		}
		list = append(list, headers.File{Path: f.path, Size: f.size, Open: f.verified, Digest: f.d})
	}
	said := headers.Read(ctx, list)
	for _, p := range append(said.Problems, headers.Missing(paths)...) {
		problems = append(problems, p.String())
	}
	m.Config, m.ContextLength = convert.MergeConfig(card, said.Config), said.ContextLength
	return problems
}

// card returns what the README.md of the files says.
func (t *tree) card(ctx context.Context) (c convert.Config) {
	i := slices.IndexFunc(t.files, func(f *localFile) bool { return f.path == cardName && f.size <= maxCard })
	if i < 0 {
		return c
	}
	r, err := t.files[i].verified(ctx)
	if err != nil {
		return c // it is reported when the file is sent
	}
	defer r.Close()
	p, err := io.ReadAll(r)
	if err != nil {
		return c
	}
	return cardOf(p)
}

// hashAll computes the digests that are not known.
func hashAll(ctx context.Context, files []*localFile) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelHashes)
	for _, f := range files {
		if f.d == "" {
			g.Go(func() error { return f.hash(ctx) })
		}
	}
	return g.Wait()
}

// hash computes the digest.
func (f *localFile) hash(ctx context.Context) error {
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := digest.SHA256.Hash()
	buf := make([]byte, min(hashBuffer, f.size+1))
	for n := int64(0); n <= f.size; {
		k, err := r.Read(buf)
		h.Write(buf[:k])
		f.pointer = f.pointer || n == 0 && f.size <= maxPointer && bytes.HasPrefix(buf[:k], pointerStart)
		n += int64(k)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == io.EOF && n == f.size:
			info, err := r.Stat()
			if err == nil && !local.Same(f.was, info) {
				err = local.Changed(f.path)
			}
			f.d = digest.NewDigest(digest.SHA256, h)
			return err
		case err != nil && err != io.EOF:
			return err
		case err == io.EOF:
			return local.Changed(f.path)
		}
	}
	return local.Changed(f.path)
}

// localFiles are the files of blobs.
type localFiles map[digest.Digest]*localFile

// Fetch reads a range of a file; see store.Fetcher.
func (l localFiles) Fetch(_ context.Context, d digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	file, ok := l[d]
	if !ok {
		return nil, 0, fmt.Errorf("blob %s: %w", d, errdefs.ErrNotFound)
	}
	f, err := file.open()
	if err != nil {
		return nil, 0, err
	}
	return local.Section(f, off, n), off, nil
}

// localModel returns the model of files. Its origin is the digest of their names and contents.
func localModel(files []*localFile) (*convert.Model, error) {
	t := filetable.Table{Version: filetable.Version}
	m := &convert.Model{}
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		t.Files = append(t.Files, filetable.File{Path: f.path, Type: filetable.TypeReg, Mode: f.mode, Size: f.size, Digest: f.d,
			Source: &filetable.Source{Blob: f.d, Size: f.size}})
		if seen[f.d] {
			continue
		}
		seen[f.d] = true
		kind := convert.KindByPath(f.path)
		mediaType := mediatype.Layer(mediatype.FormatModelPack, kind, filetable.ArchiveNone, filetable.CodecNone)
		desc := ocispec.Descriptor{MediaType: mediaType, Digest: f.d, Size: f.size}
		m.Layers = append(m.Layers, convert.Layer{Desc: desc, Kind: kind, Path: f.path, MediaType: mediaType})
		t.Blobs = append(t.Blobs, filetable.Blob{Digest: f.d, Size: f.size, Layer: len(t.Blobs)})
	}
	p, err := json.Marshal(t.Files)
	if err != nil {
		return nil, err
	}
	t.Origin = filetable.Origin{Format: string(mediatype.FormatFiles), Digest: digest.FromBytes(p), Mapping: convert.MappingVersion}
	m.Table = t
	return m, nil
}
