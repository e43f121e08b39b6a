package files

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/layout"
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

// leftOut are directories with files of tools.
var leftOut = []string{".git", ".cache", ".huggingface"}

// lfsName matches the name of a large file in the cache of a model hub: its digest. Small files
// have the name of their git object.
// https://huggingface.co/docs/huggingface_hub/v1.2.0/en/guides/manage-cache
var lfsName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// A localFile is a file of a directory.
type localFile struct {
	path string // in the model
	real string // on disk, without symbolic links
	mode uint32
	size int64
	d    digest.Digest
}

// verified opens a file; the bytes read are compared with its digest at the end.
func (f *localFile) verified(context.Context) (io.ReadCloser, error) {
	r, err := os.Open(f.real)
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
// computed, except those in file names of a snapshot of a model hub. Their headers describe the
// model.
//
// Symbolic links are followed. They may lead to files in the directory and, from the snapshot of a
// hub's cache, to the blobs beside it; any other is refused.
func Open(ctx context.Context, name string) (*format.Source, error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	s := &format.Source{}
	var files []localFile
	if info.IsDir() {
		files, s.Losses, err = scan(name)
	} else {
		files = make([]localFile, 1)
		files[0], err = local(name, filepath.Base(name), nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no files: %w", name, errdefs.ErrNotFound)
	}
	if err := hashAll(ctx, files); err != nil {
		return nil, err
	}
	fetcher := localFiles{}
	for _, f := range files {
		fetcher[f.d] = f.real
	}
	if s.Model, err = localModel(files); err != nil {
		return nil, err
	}
	s.Fetcher = fetcher
	var list []headers.File
	for _, f := range files {
		list = append(list, headers.File{Path: f.path, Size: f.size, Open: f.verified})
	}
	said := headers.Read(ctx, list)
	s.Model.Config, s.Model.ContextLength = said.Config, said.ContextLength
	return s, nil
}

// modeOf returns the mode of a file, independently of the umask: executable or not.
func modeOf(info fs.FileInfo) uint32 {
	if info.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// hubDigest returns the digest in the name of a blob of a hub's cache, or "".
func hubDigest(real string) digest.Digest {
	if base := filepath.Base(real); lfsName.MatchString(base) && filepath.Base(filepath.Dir(real)) == "blobs" {
		return digest.NewDigestFromEncoded(digest.SHA256, base)
	}
	return ""
}

// scan returns the files below dir, by path, and what is left out.
func scan(dir string) (files []localFile, losses []string, err error) {
	top, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, nil, err
	}
	if top, err = filepath.Abs(top); err != nil {
		return nil, nil, err
	}
	allowed := []string{top}
	if snapshots := filepath.Dir(top); filepath.Base(snapshots) == "snapshots" {
		allowed = append(allowed, filepath.Join(filepath.Dir(snapshots), "blobs"))
	}
	err = filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == top {
			return err
		}
		rel, err := filepath.Rel(top, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if slices.Contains(leftOut, e.Name()) {
				losses = append(losses, fmt.Sprintf("directory %q, which is no part of a model", rel))
				return fs.SkipDir
			}
			return nil
		}
		f, err := local(name, filepath.ToSlash(rel), allowed)
		files = append(files, f)
		return err
	})
	slices.SortFunc(files, func(a, b localFile) int { return cmp.Compare(a.path, b.path) })
	return files, losses, err
}

// local returns a file with a path in the model. Its content must be below one of allowed, unless that
// is nil.
func local(name, rel string, allowed []string) (localFile, error) {
	p, err := filetable.CleanPath(rel)
	if err != nil {
		return localFile{}, err
	}
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return localFile{}, err
	}
	inside := allowed == nil || slices.ContainsFunc(allowed, func(dir string) bool { return strings.HasPrefix(real, dir+string(filepath.Separator)) })
	if !inside {
		return localFile{}, fmt.Errorf("symbolic link %q leads out of the directory: %w", rel, errdefs.ErrInvalidArgument)
	}
	info, err := os.Lstat(real)
	if err != nil {
		return localFile{}, err
	}
	if info.IsDir() {
		return localFile{}, fmt.Errorf("symbolic link %q leads to a directory: %w", rel, errdefs.ErrNotImplemented)
	}
	if !info.Mode().IsRegular() {
		return localFile{}, fmt.Errorf("%q is not a regular file: %w", rel, errdefs.ErrInvalidArgument)
	}
	return localFile{path: p, real: real, mode: modeOf(info), size: info.Size(), d: hubDigest(real)}, nil
}

// hashAll computes the digests that are not known.
func hashAll(ctx context.Context, files []localFile) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelHashes)
	for i := range files {
		f := &files[i]
		if f.d != "" {
			continue
		}
		g.Go(func() (err error) {
			f.d, err = hashFile(ctx, f.real, f.size)
			return err
		})
	}
	return g.Wait()
}

func hashFile(ctx context.Context, name string, size int64) (digest.Digest, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := digest.SHA256.Hash()
	buf := make([]byte, min(hashBuffer, size+1))
	for n := int64(0); ; {
		k, err := f.Read(buf)
		h.Write(buf[:k])
		n += int64(k)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err == io.EOF && n == size:
			return digest.NewDigest(digest.SHA256, h), nil
		case err == io.EOF || n > size:
			return "", fmt.Errorf("%s changes while it is read: %w", name, errdefs.ErrUnavailable)
		case err != nil:
			return "", err
		}
	}
}

// localFiles are the paths of blobs on disk.
type localFiles map[digest.Digest]string

// Fetch reads a range of a file; see store.Fetcher.
func (l localFiles) Fetch(_ context.Context, d digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	name, ok := l[d]
	if !ok {
		return nil, 0, fmt.Errorf("blob %s: %w", d, errdefs.ErrNotFound)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return layout.Section(f, off, n), off, nil
}

// localModel returns the model of files. Its origin is the digest of their names and contents.
func localModel(files []localFile) (*convert.Model, error) {
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
