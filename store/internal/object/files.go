package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Files are the files below objects, as found by Scan.
type Files struct {
	root *os.Root
	log  *slog.Logger
	work errgroup.Group

	mu  sync.Mutex // guards all
	all [][]file   // by directory
}

// file is a file below objects. There can be millions.
type file struct {
	digest [sha256.Size]byte
	size   int64 // bytes
}

func (f file) sized() meta.Sized {
	return meta.Sized{Digest: digest.NewDigestFromBytes(digest.SHA256, f.digest[:]), Size: f.size}
}

// Scan starts to list all files below objects, while the database is opened. It fails if ctx ends.
func Scan(ctx context.Context, root *os.Root, log *slog.Logger) *Files {
	f := &Files{root: root, log: log}
	f.work.Go(func() error {
		var dirs errgroup.Group
		dirs.SetLimit(runtime.GOMAXPROCS(0))
		err := f.below(Dir, func(algorithm string) error {
			return f.below(algorithm, func(dir string) error {
				dirs.Go(func() error { return errors.Join(ctx.Err(), f.scan(dir)) })
				return nil
			})
		})
		return errors.Join(err, dirs.Wait())
	})
	return f
}

// Wait waits until all files are listed.
func (f *Files) Wait() error { return f.work.Wait() }

// below calls do for the directories in a directory, which may be missing.
func (f *Files) below(dir string, do func(dir string) error) error {
	entries, err := fs.ReadDir(f.root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			f.logUnexpected(name)
		} else if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// logUnexpected logs a file that is not an object.
func (f *Files) logUnexpected(name string) {
	f.log.Warn("unexpected file below objects; left alone", "path", name)
}

// scan lists the files in a directory.
func (f *Files) scan(dir string) error {
	d, err := f.root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	first := filepath.Base(dir) // prefix of the names in this directory
	place := len(first) == 2 && filepath.Dir(dir) == filepath.Join(Dir, digest.SHA256.String())
	fd, found := int(d.Fd()), make([]file, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		// Relative to the directory: a path would be resolved for each file.
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "stat", Path: filepath.Join(dir, name), Err: err}
		}
		id, ok := parseName(name)
		if !ok || !place || !strings.HasPrefix(name, first) || st.Mode&unix.S_IFMT != unix.S_IFREG {
			f.logUnexpected(filepath.Join(dir, name))
			continue
		}
		found = append(found, file{id, st.Size})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, found)
	return nil
}

// parseName returns the digest in a file name; false if it is not one.
func parseName(name string) (d [sha256.Size]byte, ok bool) {
	var in [2 * len(d)]byte
	if len(name) != len(in) {
		return d, false
	}
	copy(in[:], name)
	if _, err := hex.Decode(d[:], in[:]); err != nil {
		return d, false
	}
	hex.Encode(in[:], d[:])
	return d, string(in[:]) == name
}

// compared describes how files differ from the records.
type compared struct {
	lost    []digest.Digest // recorded, but missing
	resized []meta.Sized    // recorded with another size
	unknown []meta.Sized    // without a record
}

// compare compares all files with the records.
func (f *Files) compare(db *meta.DB) (diff compared) {
	db.Census(func(c *meta.Census) {
		for _, dir := range f.all {
			for _, file := range dir {
				switch size, ok := c.Found(file.digest); {
				case !ok:
					diff.unknown = append(diff.unknown, file.sized())
				case size != file.size:
					diff.resized = append(diff.resized, file.sized())
				}
			}
		}
		diff.lost = c.Missing()
	})
	return diff
}
