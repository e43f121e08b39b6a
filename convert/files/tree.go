package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// leftOut are directories with files of tools, and files of Git.
var leftOut = []string{".git", ".cache", ".huggingface", ".gitattributes", ".gitignore"}

// The directories of the cache of a model hub.
const (
	snapshotsDir = "snapshots"
	blobsDir     = "blobs"
)

// lfsName matches the name of a large file in the cache of a model hub: its digest. Small files
// have the name of their git object.
// https://huggingface.co/docs/huggingface_hub/v1.2.0/en/guides/manage-cache
var lfsName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// maxLinks limits the symbolic links on the way to a file.
const maxLinks = 40

// A tree is the files of a directory, which can change at any time.
type tree struct {
	top   string   // the directory, without symbolic links
	root  *os.Root // the directory
	blobs *os.Root // of the hub's cache; nil if the directory is not a snapshot

	files  []*localFile // by path
	losses []string     // what is left out
}

// Close closes the directories.
func (t *tree) Close() error {
	var errs []error
	for _, r := range []*os.Root{t.root, t.blobs} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// one takes a single file, which the user named.
func (t *tree) one(name string) error {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	f := &localFile{name: real}
	if filepath.Base(filepath.Dir(real)) == blobsDir {
		f.d = hubDigest(filepath.Base(real))
	}
	return t.add(f, filepath.Base(name))
}

// scan takes the files of a directory.
func (t *tree) scan(ctx context.Context, dir string) (err error) {
	if t.top, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	if t.top, err = filepath.Abs(t.top); err != nil {
		return err
	}
	if t.root, err = local.OpenRoot(t.top); err != nil {
		return err
	}
	if snapshots := filepath.Dir(t.top); filepath.Base(snapshots) == snapshotsDir {
		if err := t.openBlobs(filepath.Join(filepath.Dir(snapshots), blobsDir)); err != nil {
			return err
		}
	}
	if err := t.notCache(); err != nil {
		return err
	}
	err = t.walk(ctx, ".")
	slices.SortFunc(t.files, func(a, b *localFile) int { return cmp.Compare(a.path, b.path) })
	return err
}

// notCache returns an error with the names of the snapshots if the directory is that of a repository in the cache of a
// model hub.
func (t *tree) notCache() error {
	for _, dir := range []string{blobsDir, snapshotsDir} {
		if info, err := t.root.Lstat(dir); err != nil || !info.IsDir() {
			return nil
		}
	}
	revisions, err := local.ReadDir(t.root, snapshotsDir)
	if err != nil || len(revisions) == 0 {
		return err
	}
	var names []string
	for _, e := range revisions[:min(len(revisions), 10)] {
		names = append(names, filepath.Join(t.top, snapshotsDir, e.Name()))
	}
	return fmt.Errorf("it is a repository in the cache of a model hub; name one of its snapshots:\n  %s: %w", strings.Join(names, "\n  "), errdefs.ErrInvalidArgument)
}

// openBlobs opens the blobs of the hub's cache, if they are there.
func (t *tree) openBlobs(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil // then no link leads there
	}
	if t.blobs, err = local.OpenRoot(dir); err != nil {
		return err
	}
	opened, err := t.blobs.Stat(".")
	if err == nil && !os.SameFile(info, opened) {
		err = local.Changed(dir)
	}
	return err
}

// walk takes the files below a directory of the tree.
func (t *tree) walk(ctx context.Context, dir string) error {
	entries, err := local.ReadDir(t.root, dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case slices.Contains(leftOut, e.Name()):
			t.losses = append(t.losses, fmt.Sprintf("%q, which is not part of a model", name))
		case !e.IsDir():
			err = t.take(name)
		default:
			err = t.walk(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take takes a file or a symbolic link of the tree.
func (t *tree) take(name string) error {
	root, real, err := t.follow(name)
	var info fs.FileInfo
	if err == nil {
		info, err = root.Lstat(real)
	}
	if errors.Is(err, fs.ErrNotExist) {
		target, linkErr := t.root.Readlink(name)
		if linkErr != nil {
			return local.Changed(name)
		}
		return fmt.Errorf("symbolic link %q leads to %q, where no file is: %w", name, target, errdefs.ErrNotFound)
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("symbolic link %q leads to a directory: %w", name, errdefs.ErrNotImplemented)
	}
	f := &localFile{root: root, name: real}
	if root == t.blobs {
		f.d = hubDigest(real)
	}
	return t.add(f, name)
}

// add adds a file, with the size and mode that its descriptor tells.
func (t *tree) add(f *localFile, name string) (err error) {
	if f.path, err = filetable.CleanPath(name); err != nil {
		return err
	}
	r, info, err := f.openAny()
	if err != nil {
		return err
	}
	f.was, f.size, f.mode = info, info.Size(), modeOf(info)
	t.files = append(t.files, f)
	return r.Close()
}

// follow returns the file that a name of the tree leads to. What happens to the names afterwards does
// no harm, as neither directory can be left.
func (t *tree) follow(name string) (*os.Root, string, error) {
	left, links := strings.Split(name, "/"), 0
	var at []string // below the directory, without symbolic links; it can begin with ".."
	for len(left) > 0 {
		part := left[0]
		left = left[1:]
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." && len(at) > 0 && at[len(at)-1] != "..":
			at = at[:len(at)-1]
			continue
		}
		at = append(at, part)
		if at[0] == ".." {
			continue
		}
		info, err := t.root.Lstat(path.Join(at...))
		if err != nil {
			return nil, "", err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			continue
		}
		target, err := t.root.Readlink(path.Join(at...))
		if err != nil {
			return nil, "", err
		}
		if links++; links > maxLinks {
			return nil, "", fmt.Errorf("symbolic link %q leads to too many others: %w", name, errdefs.ErrInvalidArgument)
		}
		at = at[:len(at)-1]
		if filepath.IsAbs(target) {
			at = nil
			if target, err = filepath.Rel(t.top, target); err != nil {
				return nil, "", err
			}
		}
		left = append(strings.Split(target, "/"), left...)
	}
	switch real := path.Join(append([]string{"."}, at...)...); {
	case t.blobs != nil && path.Dir(real) == "../../"+blobsDir:
		return t.blobs, path.Base(real), nil
	case len(at) > 0 && at[0] == "..":
		return nil, "", fmt.Errorf("symbolic link %q leads out of the directory: %w", name, errdefs.ErrInvalidArgument)
	default:
		return t.root, real, nil
	}
}

// modeOf returns the mode of a file, independently of the umask: executable or not.
func modeOf(info fs.FileInfo) uint32 {
	if info.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// hubDigest returns the digest in the name of a blob of a hub's cache, or "".
func hubDigest(name string) digest.Digest {
	if lfsName.MatchString(name) {
		return digest.NewDigestFromEncoded(digest.SHA256, name)
	}
	return ""
}
