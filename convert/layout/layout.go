package layout

import (
	"bytes"
	"cmp"
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
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobsDir is the directory of the blobs.
const blobsDir = ocispec.ImageBlobsDir + "/sha256"

// ingest begins the name of a blob that is being written.
const ingest = ".ingest-"

// freshLayout begins the name of a file oci-layout that is being written.
const freshLayout = ocispec.ImageLayoutFile + "."

// bufferSize is the size of the buffer for writing a blob, in bytes.
const bufferSize = 1 << 20

// maxIndex limits index.json, in bytes.
const maxIndex = 16 << 20

// lockWait limits how long a change of the index waits for others, which write a manifest.
const lockWait = 10 * time.Minute

var layoutTag = regexp.MustCompile(`^[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*$`)

var (
	_ transfer.Fetcher = (*Layout)(nil)
	_ convert.Artifact = (*Layout)(nil)
)

// A Layout is an OCI layout, a directory with blobs and an index, with the tag that is read or
// written. All files are accessed through an os.Root, so nothing outside the directory is.
type Layout struct {
	dir      string
	tag      string
	root     *os.Root
	manifest []byte // that Open read

	sync func(root *os.Root, dir string) error // durable.Sync, except in tests
}

// Is reports whether a directory is an OCI layout.
func Is(dir string) bool {
	info, err := os.Stat(path.Join(dir, ocispec.ImageLayoutFile))
	return err == nil && info.Mode().IsRegular()
}

// Open opens a layout to read the manifest with a tag, or, without a tag, its only one.
func Open(dir, tag string) (*Layout, error) {
	if !Is(dir) {
		return nil, notLayout(dir)
	}
	l, err := openDir(dir, tag)
	if err != nil {
		return nil, err
	}
	if l.manifest, err = l.find(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", l, err), l.Close())
	}
	return l, nil
}

func notLayout(dir string) error {
	return fmt.Errorf("%s is not an OCI layout: it has no file %s: %w", dir, ocispec.ImageLayoutFile, errdefs.ErrNotFound)
}

// CheckTag returns errdefs.ErrInvalidArgument for what is no tag of a layout: other tools list no manifest of a layout
// with such a tag.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md#pre-defined-annotation-keys
func CheckTag(tag string) error {
	if layoutTag.MatchString(tag) {
		return nil
	}
	return fmt.Errorf("%q is no tag of an OCI layout: that has letters and digits (A-Z, a-z, 0-9), and between them one of - . _ : @ + / or --: %w", tag, errdefs.ErrInvalidArgument)
}

// Create opens a layout to write, and creates it if necessary. An empty tag is "latest".
func Create(dir, tag string) (*Layout, error) {
	if tag == "" {
		tag = "latest"
	}
	if err := CheckTag(tag); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), freshLayout) }) && !Is(dir) {
		return nil, fmt.Errorf("directory %s is not empty and not an OCI layout: %w", dir, errdefs.ErrFailedPrecondition)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l, err := openDir(dir, tag)
	if err != nil {
		return nil, err
	}
	if !Is(dir) { // first: if the process is killed, the next one finds a layout
		err = l.write(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	}
	if err == nil {
		err = l.root.MkdirAll(blobsDir, 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func openDir(dir, tag string) (*Layout, error) {
	root, err := local.OpenRoot(dir)
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
	f, _, err := local.Open(l.root, ocispec.ImageIndexFile)
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
		return idx, fmt.Errorf("%s: more than %d bytes: %w", ocispec.ImageIndexFile, maxIndex, errdefs.ErrInvalidArgument)
	}
	all := struct {
		*ocispec.Index
		Manifests []listed `json:"manifests"`
	}{Index: &idx}
	if err := json.Unmarshal(p, &all); err != nil {
		return idx, fmt.Errorf("%s: %w: %w", ocispec.ImageIndexFile, err, errdefs.ErrInvalidArgument)
	}
	for _, d := range all.Manifests {
		idx.Manifests = append(idx.Manifests, ocispec.Descriptor(d))
	}
	return idx, nil
}

// listed is one of the manifests of an index.
type listed ocispec.Descriptor

// UnmarshalJSON refuses what is too short for a digest, at the first one: millions of these take a hundred times their
// size.
func (d *listed) UnmarshalJSON(p []byte) error {
	if len(p) < digest.Canonical.Size()*2 {
		return fmt.Errorf("%q is no descriptor of a manifest", p)
	}
	return json.Unmarshal(p, (*ocispec.Descriptor)(d))
}

// find reads the manifest with the tag of the layout.
func (l *Layout) find() ([]byte, error) {
	idx, err := l.index()
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("no such manifest; there are: %q: %w", tags, errdefs.ErrNotFound)
	case len(found) > 1:
		return nil, fmt.Errorf("has several manifests, name one: %q: %w", tags, errdefs.ErrFailedPrecondition)
	}
	p, err := l.ReadBlob(context.Background(), found[0], convert.MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return p, nil
}

// Manifest returns the manifest that Open read.
func (l *Layout) Manifest() []byte { return l.manifest }

// BlobAt returns ranged reads of a blob; see convert.Artifact.
func (l *Layout) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	return l.OpenBlob(desc.Digest)
}

// ReadBlob reads a small blob; see convert.Artifact.
func (l *Layout) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	f, err := l.OpenBlob(desc.Digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return verify.Read(f, desc.Digest, desc.Size, limit)
}

// blobPath returns the path of a blob in the layout.
func blobPath(d digest.Digest) string { return path.Join(blobsDir, d.Encoded()) }

// OpenBlob opens the file of a blob, which is not verified. It returns errdefs.ErrNotFound if there is none.
func (l *Layout) OpenBlob(d digest.Digest) (*os.File, error) {
	if _, err := verify.ParseDigest(d.String()); err != nil {
		return nil, err
	}
	f, _, err := local.Open(l.root, blobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", blobPath(d), errdefs.ErrNotFound)
	}
	return f, err
}

// Fetch reads a range of a blob; see store.Fetcher.
func (l *Layout) Fetch(_ context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f, err := l.OpenBlob(d)
	if err != nil {
		return nil, 0, err
	}
	return local.Section(f, off, n), off, nil
}

// Has reports whether the layout has a blob of that size.
func (l *Layout) Has(_ context.Context, d digest.Digest, size int64) (bool, error) {
	info, err := l.root.Stat(blobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode().IsRegular() && info.Size() == size, err
}

// Mount is Put: a layout is one repository.
func (l *Layout) Mount(ctx context.Context, d digest.Digest, size int64, _, _ string, open func(context.Context) (io.ReadCloser, error)) (bool, error) {
	return false, l.Put(ctx, d, size, open)
}

// Put writes a blob.
func (l *Layout) Put(ctx context.Context, d digest.Digest, size int64, open func(context.Context) (io.ReadCloser, error)) error {
	_, err := l.put(ctx, d, size, open)
	return err
}

// PutStream writes a blob whose digest is not known.
func (l *Layout) PutStream(ctx context.Context, size int64, open func(context.Context) (io.ReadCloser, error)) (digest.Digest, error) {
	return l.put(ctx, "", size, open)
}

// put writes a blob, whose digest is empty if it is not known, and returns its digest.
func (l *Layout) put(ctx context.Context, d digest.Digest, size int64, open func(context.Context) (io.ReadCloser, error)) (digest.Digest, error) {
	body, err := open(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	hash := verify.NewHash()
	err = l.create(path.Join(blobsDir, ingest), func(f io.Writer) (string, error) {
		n, err := io.CopyBuffer(io.MultiWriter(f, hash), io.LimitReader(body, size+1), make([]byte, bufferSize))
		if err != nil {
			return "", err
		}
		got := hash.Digest()
		d = cmp.Or(d, got)
		return blobPath(d), verify.Compare(d, got, size, n)
	})
	return d, err
}

// Named returns the manifest with the tag; nil if there is none.
func (l *Layout) Named(context.Context) ([]byte, error) {
	p, err := l.find()
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return p, err
}

// PutManifest writes the manifest, and its tag into the index.
func (l *Layout) PutManifest(ctx context.Context, mediaType string, p []byte) error {
	desc := ocispec.Descriptor{MediaType: mediaType, Annotations: map[string]string{mediatype.AnnotationRefName: l.tag}}
	if m, err := convert.ParseManifest(p); err == nil {
		desc.ArtifactType = m.ArtifactType
	}
	return l.add(ctx, desc, p)
}

// PutReferrer writes a manifest that refers to another one, and adds it to the index without a tag.
func (l *Layout) PutReferrer(ctx context.Context, _ digest.Digest, desc ocispec.Descriptor, p []byte) error {
	return l.add(ctx, desc, p)
}

// lock keeps others, also of other processes, from changing the index.
func (l *Layout) lock(ctx context.Context) (unlock func() error, err error) {
	dir, err := l.root.Open(".")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("another program keeps %s locked: %w", l.dir, errdefs.ErrUnavailable))
	defer cancel()
	if err := durable.Lock(ctx, dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir.Close, nil
}

// add writes a manifest, and adds it to the index in place of the one with the same tag, or of
// itself.
func (l *Layout) add(ctx context.Context, desc ocispec.Descriptor, p []byte) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	desc.Digest, desc.Size = digest.FromBytes(p), int64(len(p))
	err = l.Put(ctx, desc.Digest, desc.Size, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil })
	if err != nil {
		return err
	}
	idx, err := l.index()
	if err != nil {
		return err
	}
	tag := desc.Annotations[mediatype.AnnotationRefName]
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(o ocispec.Descriptor) bool {
		return o.Annotations[mediatype.AnnotationRefName] == tag && (tag != "" || o.Digest == desc.Digest)
	})
	idx.Manifests = append(idx.Manifests, desc)
	for _, dir := range []string{blobsDir, ocispec.ImageBlobsDir} { // the index must not name blobs that are not durable
		if err := l.sync(l.root, dir); err != nil {
			return err
		}
	}
	return l.write(ocispec.ImageIndexFile, idx)
}

// write replaces a file by the JSON of a value.
func (l *Layout) write(name string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	err = l.create(name+".", func(f io.Writer) (string, error) {
		_, err := f.Write(p)
		return name, err
	})
	if err != nil {
		return err
	}
	return durable.Sync(l.root, ".")
}

// create writes a file and renames it to the name that fill returns. Other processes may write the
// same layout, so the file first has a unique name, which begins with prefix.
func (l *Layout) create(prefix string, fill func(io.Writer) (name string, err error)) error {
	temp := prefix + rand.Text()
	f, err := l.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	name, err := fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.root.Rename(temp, name)
	}
	if err != nil {
		l.root.Remove(temp)
	}
	return err
}
