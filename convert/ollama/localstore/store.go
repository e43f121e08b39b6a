package localstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	blobDir  = "blobs"
	v2Dir    = "manifests-v2"
	olderDir = "manifests"
)

// maxModels limits the models listed.
const maxModels = 100_000

// A Store is a directory of Ollama models, which Ollama calls OLLAMA_MODELS. Its methods are safe
// for concurrent use.
type Store struct {
	dir  string // absolute
	root *os.Root
}

// A Model is a model of a Store.
type Model struct {
	Name Name

	path string // of the manifest, in the store
}

// Open opens the store at dir. It returns errdefs.ErrNotFound if dir is not a store, which has
// blobs. The caller closes the Store.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := local.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("ollama store: %w", category(err))
	}
	info, err := root.Lstat(blobDir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory: %w", blobDir, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("ollama store %s: %w", dir, category(err))
	}
	return &Store{dir: dir, root: root}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.root.Close() }

// category adds our category to an error of the file system.
func category(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	}
	return err
}

// Models returns the models, sorted by name. It reads no manifests, so a model can still be
// invalid.
func (s *Store) Models() ([]Model, error) {
	var all []Model
	seen := map[string]bool{}
	for _, layout := range []string{v2Dir, olderDir} {
		var found []Model
		if err := s.walk(layout, nil, &found); err != nil {
			return nil, err
		}
		for _, m := range found {
			seen[layout+m.Name.key()] = true
			if layout == v2Dir || !seen[v2Dir+m.Name.key()] {
				all = append(all, m)
			}
		}
	}
	slices.SortFunc(all, func(a, b Model) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	return all, nil
}

// nameDepth is the number of path elements of a name: directories and the file.
const nameDepth = 4

// walk adds the models below dir, which consists of the layout and the given parts of a name.
func (s *Store) walk(dir string, parts []string, found *[]Model) error {
	entries, err := s.readDir(dir, len(parts) == 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no such layout, or just removed
	}
	if err != nil {
		return fmt.Errorf("ollama store %s: %w", s.dir, category(err))
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		here, name := path.Join(dir, e.Name()), append(slices.Clip(parts), e.Name())
		if len(name) < nameDepth {
			if e.IsDir() {
				if err := s.walk(here, name, found); err != nil {
					return err
				}
			}
			continue
		}
		n := Name{strings.ReplaceAll(name[0], "%3A", ":"), name[1], name[2], name[3]}
		if e.IsDir() || !n.valid() || n.isShadow() {
			continue
		}
		if len(*found) == maxModels {
			return fmt.Errorf("ollama store %s: more than %d models: %w", s.dir, maxModels, errdefs.ErrInvalidArgument)
		}
		*found = append(*found, Model{n.canonical(), here})
	}
	return nil
}

func (s *Store) readDir(dir string, top bool) ([]fs.DirEntry, error) {
	info, err := s.root.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if top {
			return nil, fmt.Errorf("%s is not a directory: %w", dir, errdefs.ErrInvalidArgument)
		}
		return nil, nil
	}
	return local.ReadDir(s.root, dir)
}

// Artifact returns the model with a name, as Ollama users write it. It can be a manifest list.
// Artifact returns errdefs.ErrNotFound if there is no such model, errdefs.ErrInvalidArgument for a
// link that leads anywhere but to a blob of the store, and a *verify.Error for a manifest that does
// not match the digest in the link.
func (s *Store) Artifact(name string) (*Artifact, error) {
	n, err := ParseName(name)
	if err != nil {
		return nil, err
	}
	models, err := s.Models()
	if err != nil {
		return nil, err
	}
	same := func(m Model) bool { return m.Name == n }
	i := slices.IndexFunc(models, same)
	if i < 0 {
		i = slices.IndexFunc(models, func(m Model) bool { return m.Name.key() == n.key() })
	}
	if i < 0 {
		return nil, fmt.Errorf("model %s is not in %s, %s: %w", n, s.dir, known(models), errdefs.ErrNotFound)
	}
	p, err := s.manifest(models[i].path)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", n, s.Explain(n, err))
	}
	return &Artifact{s, models[i].Name, p}, nil
}

// manifest reads the manifest at a path found by Models.
func (s *Store) manifest(at string) ([]byte, error) {
	info, err := s.root.Lstat(at)
	if err != nil {
		return nil, category(err)
	}
	if info.Mode().Type() != fs.ModeSymlink {
		f, err := s.open(at)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readManifest(f)
	}
	target, err := s.root.Readlink(at)
	if err != nil {
		return nil, category(err)
	}
	dir, name := path.Split(path.Join(path.Dir(at), target))
	encoded, ok := strings.CutPrefix(name, "sha256-")
	if path.IsAbs(target) || dir != blobDir+"/" || !ok || !hexDigest.MatchString(encoded) {
		return nil, fmt.Errorf("%s links to %.200q, which is not a blob of the store: %w", at, target, errdefs.ErrInvalidArgument)
	}
	return s.ReadManifest(digest.NewDigestFromEncoded(digest.SHA256, encoded))
}

// ReadManifest reads a manifest blob, such as a child of a list. It returns a *verify.Error if the
// blob does not match the digest in its name.
func (s *Store) ReadManifest(d digest.Digest) ([]byte, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := readManifest(f)
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", d, err)
	}
	if err := verify.Bytes(d, p); err != nil {
		return nil, err
	}
	return p, nil
}

func readManifest(r io.Reader) ([]byte, error) {
	p, err := io.ReadAll(io.LimitReader(r, convert.MaxManifestSize+1))
	if err == nil && len(p) > convert.MaxManifestSize {
		err = fmt.Errorf("manifest of more than %d bytes: %w", convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	return p, err
}

// open opens a regular file of the store: a link, a pipe or a device in its place is refused, even
// if it replaces the file concurrently.
func (s *Store) open(at string) (*os.File, error) {
	info, err := s.root.Lstat(at)
	if err != nil {
		return nil, category(err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: %w", at, errdefs.ErrInvalidArgument)
	}
	f, opened, err := local.Open(s.root, at)
	if err != nil {
		return nil, category(err)
	}
	if !os.SameFile(info, opened) {
		return nil, errors.Join(fmt.Errorf("%s was replaced while it was opened: %w", at, errdefs.ErrUnavailable), f.Close())
	}
	return f, nil
}

// blobPath returns the path of a blob in the store. Early versions of Ollama had a colon in its
// name.
func (s *Store) blobPath(d digest.Digest) (string, error) {
	if _, err := verify.ParseDigest(d.String()); err != nil {
		return "", err
	}
	at := path.Join(blobDir, "sha256-"+d.Encoded())
	if _, err := s.root.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		return at, nil
	}
	older := path.Join(blobDir, d.String())
	if _, err := s.root.Lstat(older); err == nil {
		return older, nil
	}
	return at, nil
}

// OpenBlob opens a blob, without verification. It returns errdefs.ErrNotFound if it is missing or
// incomplete, and errdefs.ErrInvalidArgument if it is not a regular file.
func (s *Store) OpenBlob(d digest.Digest) (*os.File, error) {
	at, err := s.blobPath(d)
	if err != nil {
		return nil, err
	}
	f, err := s.open(at)
	if err != nil {
		return nil, fmt.Errorf("ollama store %s: blob %s: %w", s.dir, d, err)
	}
	return f, nil
}

// BlobPath returns the absolute path of a blob, for a hard link to it. The caller must check that
// the link is a regular file, and verify it; otherwise use OpenBlob.
func (s *Store) BlobPath(d digest.Digest) (string, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return "", err
	}
	defer f.Close()
	at, err := s.blobPath(d)
	if err != nil {
		return "", err
	}
	return filepath.Join(s.dir, at), nil
}

var _ convert.Artifact = (*Artifact)(nil)

// An Artifact is a model of a Store.
type Artifact struct {
	s        *Store
	name     Name
	manifest []byte
}

// Name returns the name of the model in the store.
func (a *Artifact) Name() Name { return a.name }

// Manifest returns the manifest, byte for byte as in the store.
func (a *Artifact) Manifest() []byte { return a.manifest }

// ReadBlob reads and verifies a small blob; see convert.Artifact.
func (a *Artifact) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	f, err := a.s.OpenBlob(desc.Digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return verify.Read(f, desc.Digest, desc.Size, limit)
}

// BlobAt returns the file of a blob, without verification; see convert.Artifact. It is an
// io.Closer. It returns a *verify.Error for a file of another size.
func (a *Artifact) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	f, err := a.s.OpenBlob(desc.Digest)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != desc.Size {
		err = &verify.Error{Want: desc.Digest, Got: desc.Digest, WantSize: desc.Size, GotSize: info.Size()}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
