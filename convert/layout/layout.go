package layout

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The files of an OCI layout.
const (
	layoutFile    = "oci-layout"
	layoutIndex   = "index.json"
	layoutBlobs   = "blobs/sha256"
	layoutVersion = "1.0.0"
)

// bufferSize is the size of the buffer for writing a blob, in bytes.
const bufferSize = 1 << 20

// maxIndex limits index.json, in bytes.
const maxIndex = 16 << 20

var layoutTag = regexp.MustCompile(`^[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*$`)

var _ transfer.Fetcher = (*Layout)(nil)

// A Layout is an OCI layout, a directory with blobs and an index, with the tag that is read or
// written. All files are accessed through an os.Root, so nothing outside the directory is.
type Layout struct {
	dir  string
	tag  string
	root *os.Root

	mu   sync.Mutex                            // serializes writes of index.json by this process
	sync func(root *os.Root, dir string) error // durable.Sync, except in tests
}

// Is reports whether a directory is an OCI layout.
func Is(dir string) bool {
	info, err := os.Stat(path.Join(dir, layoutFile))
	return err == nil && info.Mode().IsRegular()
}

// Open opens a layout to read the manifest with a tag, or, without a tag, its only one.
func Open(dir, tag string) (*Layout, error) {
	if !Is(dir) {
		return nil, fmt.Errorf("%s is not an OCI layout: it has no file %s: %w", dir, layoutFile, errdefs.ErrNotFound)
	}
	return openDir(dir, tag)
}

// Create opens a layout to write, and creates it if necessary. An empty tag is "latest".
func Create(dir, tag string) (*Layout, error) {
	if tag == "" {
		tag = "latest"
	}
	if !layoutTag.MatchString(tag) {
		return nil, fmt.Errorf("tag %q: %w", tag, errdefs.ErrInvalidArgument)
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 && !Is(dir) {
		return nil, fmt.Errorf("directory %s is not empty and not an OCI layout: %w", dir, errdefs.ErrFailedPrecondition)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l, err := openDir(dir, tag)
	if err != nil {
		return nil, err
	}
	err = l.root.MkdirAll(layoutBlobs, 0o755)
	if err == nil && !Is(dir) {
		err = l.write(layoutFile, encode(ocispec.ImageLayout{Version: layoutVersion}))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func openDir(dir, tag string) (*Layout, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Layout{dir: dir, tag: tag, root: root, sync: durable.Sync}, nil
}

// Close closes the directory.
func (l *Layout) Close() error { return l.root.Close() }

// String returns "oci:dir:tag".
func (l *Layout) String() string {
	if l.tag == "" {
		return "oci:" + l.dir
	}
	return "oci:" + l.dir + ":" + l.tag
}

// index reads index.json; a new layout has an empty one.
func (l *Layout) index() (ocispec.Index, error) {
	idx := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIIndex, Manifests: []ocispec.Descriptor{}}
	f, err := l.root.Open(layoutIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return idx, nil
	}
	if err != nil {
		return idx, err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err != nil {
		return idx, err
	}
	if len(p) > maxIndex {
		return idx, fmt.Errorf("%s: more than %d bytes: %w", layoutIndex, maxIndex, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(p, &idx); err != nil {
		return idx, fmt.Errorf("%s: %w: %w", layoutIndex, err, errdefs.ErrInvalidArgument)
	}
	return idx, nil
}

// Artifact returns the artifact with the tag of the layout.
func (l *Layout) Artifact() (convert.Artifact, error) {
	idx, err := l.index()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l, err)
	}
	var found []ocispec.Descriptor
	var tags []string
	for _, d := range idx.Manifests {
		name := d.Annotations[mediatype.AnnotationRefName]
		if name == "" && d.ArtifactType == mediatype.Bundle {
			continue // a signature of another manifest
		}
		if l.tag == "" || name == l.tag || d.Digest.String() == l.tag {
			found = append(found, d)
		}
		tags = append(tags, name)
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%s: no such manifest; there are: %q: %w", l, tags, errdefs.ErrNotFound)
	case len(found) > 1:
		return nil, fmt.Errorf("%s: has several manifests, name one: %q: %w", l, tags, errdefs.ErrFailedPrecondition)
	}
	p, err := l.read(found[0], convert.MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("%s: manifest: %w", l, err)
	}
	return &layoutArtifact{l, p}, nil
}

// A layoutArtifact is a manifest of a layout.
type layoutArtifact struct {
	l        *Layout
	manifest []byte
}

// Manifest returns the manifest.
func (a *layoutArtifact) Manifest() []byte { return a.manifest }

// ReadBlob reads a small blob; see convert.Artifact.
func (a *layoutArtifact) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	return a.l.read(desc, limit)
}

// BlobAt returns ranged reads of a blob; see convert.Artifact.
func (a *layoutArtifact) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	return a.l.open(desc.Digest)
}

func (l *Layout) read(desc ocispec.Descriptor, limit int64) ([]byte, error) {
	f, err := l.open(desc.Digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return verify.Read(f, desc.Digest, desc.Size, limit)
}

// blobPath returns the path of a blob in the layout.
func blobPath(d digest.Digest) string { return path.Join(layoutBlobs, d.Encoded()) }

func (l *Layout) open(d digest.Digest) (*os.File, error) {
	if _, err := verify.ParseDigest(d.String()); err != nil {
		return nil, err
	}
	return openRegular(l.root, blobPath(d))
}

// openRegular opens a regular file.
func openRegular(root *os.Root, name string) (*os.File, error) {
	info, err := root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block
		return nil, fmt.Errorf("%s is not a regular file: %w", name, errdefs.ErrInvalidArgument)
	}
	return root.Open(name)
}

// Fetch reads a range of a blob; see store.Fetcher.
func (l *Layout) Fetch(_ context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f, err := l.open(d)
	if err != nil {
		return nil, 0, err
	}
	return Section(f, off, n), off, nil
}

// Section returns a range of a file, and closes the file with it.
func Section(f *os.File, off, n int64) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}
}

// Has reports whether the layout has a blob of that size.
func (l *Layout) Has(_ context.Context, d digest.Digest, size int64) (bool, error) {
	info, err := l.root.Stat(blobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode().IsRegular() && info.Size() == size, err
}

// Mount returns false: a layout is one repository.
func (l *Layout) Mount(context.Context, digest.Digest, string, string) (bool, error) {
	return false, nil
}

// Put writes a blob.
func (l *Layout) Put(ctx context.Context, d digest.Digest, size int64, open func(context.Context) (io.ReadCloser, error)) error {
	return l.ingest(ctx, open, func(f *os.File, body io.Reader) (digest.Digest, error) {
		_, err := io.CopyBuffer(onlyWriter{f}, verify.NewReader(body, d, size), make([]byte, bufferSize))
		return d, err
	})
}

// PutStream writes a blob whose digest is not known.
func (l *Layout) PutStream(ctx context.Context, size int64, open func(context.Context) (io.ReadCloser, error)) (d digest.Digest, err error) {
	err = l.ingest(ctx, open, func(f *os.File, body io.Reader) (digest.Digest, error) {
		hash := digest.SHA256.Hash()
		n, err := io.CopyBuffer(onlyWriter{f}, io.TeeReader(body, hash), make([]byte, bufferSize))
		if err == nil && n != size {
			err = fmt.Errorf("got %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
		}
		d = digest.NewDigest(digest.SHA256, hash)
		return d, err
	})
	return d, err
}

// inMemory returns a function that opens bytes.
func inMemory(p []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}

// encode returns the JSON of a value whose encoding cannot fail.
func encode(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("layout: internal error: %v", err))
	}
	return p
}

// onlyWriter hides the ReadFrom method of a file, which allocates its own buffers.
type onlyWriter struct{ io.Writer }

// ingest writes a file and renames it to its digest.
func (l *Layout) ingest(ctx context.Context, open func(context.Context) (io.ReadCloser, error), fill func(*os.File, io.Reader) (digest.Digest, error)) error {
	body, err := open(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	name := path.Join(layoutBlobs, ".ingest-"+rand.Text())
	f, err := l.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	d, err := fill(f, body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.root.Rename(name, blobPath(d))
	}
	if err != nil {
		l.root.Remove(name)
	}
	return err
}

// PutManifest writes the manifest, and its tag into the index.
func (l *Layout) PutManifest(ctx context.Context, mediaType string, p []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := digest.FromBytes(p)
	if err := l.Put(ctx, d, int64(len(p)), inMemory(p)); err != nil {
		return err
	}
	idx, err := l.index()
	if err != nil {
		return err
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(d ocispec.Descriptor) bool {
		return d.Annotations[mediatype.AnnotationRefName] == l.tag
	})
	desc := ocispec.Descriptor{
		MediaType: mediaType, Digest: d, Size: int64(len(p)),
		Annotations: map[string]string{mediatype.AnnotationRefName: l.tag},
	}
	if m, err := convert.ParseManifest(p); err == nil {
		desc.ArtifactType = m.ArtifactType
	}
	idx.Manifests = append(idx.Manifests, desc)
	return l.writeIndex(idx)
}

// PutReferrer writes a manifest that refers to another one, and adds it to the index without a tag.
func (l *Layout) PutReferrer(ctx context.Context, _ digest.Digest, desc ocispec.Descriptor, p []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := digest.FromBytes(p)
	if err := l.Put(ctx, d, int64(len(p)), inMemory(p)); err != nil {
		return err
	}
	idx, err := l.index()
	if err != nil || slices.ContainsFunc(idx.Manifests, func(o ocispec.Descriptor) bool { return o.Digest == d }) {
		return err
	}
	desc.Digest, desc.Size = d, int64(len(p))
	idx.Manifests = append(idx.Manifests, desc)
	return l.writeIndex(idx)
}

// writeIndex replaces index.json, after the blobs that it names are durable.
func (l *Layout) writeIndex(idx ocispec.Index) error {
	for _, dir := range []string{layoutBlobs, path.Dir(layoutBlobs)} {
		if err := l.sync(l.root, dir); err != nil {
			return err
		}
	}
	return l.write(layoutIndex, encode(idx))
}

// write replaces a file. Other processes may write the same layout, so the new content first has a
// unique name.
func (l *Layout) write(name string, p []byte) error {
	temp := name + "." + rand.Text()
	f, err := l.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.root.Rename(temp, name)
	}
	if err != nil {
		l.root.Remove(temp)
		return err
	}
	return durable.Sync(l.root, ".")
}
