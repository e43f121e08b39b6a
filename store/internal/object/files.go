package object

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// directories is the number of directories of objects: one for each first byte of a digest.
const directories = 1 << 8

// dirName returns the name of the directory of the objects whose digests begin with a byte.
func dirName(first byte) string { return hex.EncodeToString([]byte{first}) }

// topPath is the path of their parent.
var topPath = filepath.Join(Dir, digest.SHA256.String())

func dirPath(first byte) string { return filepath.Join(topPath, dirName(first)) }

// state returns the state of a directory; the zero value if there is none.
func (s *Objects) state(first byte) (meta.DirState, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(s.top.Fd()), dirName(first), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return meta.DirState{}, nil
	} else if err != nil {
		return meta.DirState{}, &fs.PathError{Op: "stat", Path: dirPath(first), Err: err}
	}
	return meta.DirState{Inode: st.Ino, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}, nil
}

// A lister lists directories. It has buffers, because there can be millions of files.
type lister struct {
	*Objects
	strays bool // log other files
	buf    []byte
	found  []meta.Found
}

func (s *Objects) newLister() *lister { return &lister{Objects: s, buf: make([]byte, 64<<10)} }

// differences compares the files in a directory with the records. Without sizes it does not look at recorded files,
// only at their names.
func (s *lister) differences(first byte, sizes bool) (diff meta.Difference, err error) {
	s.found = s.found[:0]
	st, err := s.state(first)
	if err != nil || st == (meta.DirState{}) {
		return s.o.DB.Compare(first, nil), err
	}
	d, err := s.o.Root.Open(dirPath(first))
	if err != nil {
		return diff, err
	}
	defer d.Close()
	if err := s.list(d, first, sizes); err != nil {
		return diff, err
	}
	diff = s.o.DB.Compare(first, s.found)
	if sizes {
		return diff, nil
	}
	unknown := diff.Unknown
	diff.Unknown = nil
	for _, f := range unknown {
		size, regular, err := stat(d, hex.EncodeToString(f.Digest[:]))
		if err != nil {
			return diff, err
		}
		if regular {
			diff.Unknown = append(diff.Unknown, meta.Found{Digest: f.Digest, Size: size})
		}
	}
	return diff, nil
}

// list finds the files in a directory that have the name of an object, with sizes if wanted.
func (s *lister) list(d *os.File, first byte, sizes bool) error {
	for {
		n, err := unix.Getdents(int(d.Fd()), s.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return &fs.PathError{Op: "readdir", Path: d.Name(), Err: err}
		case n == 0:
			return nil
		}
		for kind, name := range entries(s.buf[:n]) {
			f := meta.Found{Size: -1}
			object := kind == unix.DT_REG || kind == unix.DT_UNKNOWN
			if object {
				f.Digest, object = parseName(name)
			}
			object = object && f.Digest[0] == first
			if object && (sizes || kind == unix.DT_UNKNOWN) {
				if f.Size, object, err = stat(d, string(name)); errors.Is(err, fs.ErrNotExist) {
					continue // removed meanwhile
				} else if err != nil {
					return err
				}
			}
			switch {
			case object:
				s.found = append(s.found, f)
			case s.strays && string(name) != "." && string(name) != "..":
				s.logUnexpected(filepath.Join(dirPath(first), string(name)))
			}
		}
	}
}

// entries returns the kinds (DT_REG and others) and names in the result of getdents64.
func entries(p []byte) iter.Seq2[byte, []byte] {
	const length, kind, name = 16, 18, 19 // offsets in linux_dirent64
	return func(yield func(byte, []byte) bool) {
		for len(p) > name {
			e := p[:binary.NativeEndian.Uint16(p[length:])]
			p = p[len(e):]
			text, _, _ := bytes.Cut(e[name:], []byte{0})
			if !yield(e[kind], text) {
				return
			}
		}
	}
}

// stat returns the size of a file in a directory, and whether it is a regular file.
func stat(dir *os.File, name string) (size int64, regular bool, err error) {
	var st unix.Stat_t
	// Relative to the directory: a path would be resolved for each file.
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return st.Size, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

// parseName returns the digest in a file name; false if it is not one.
func parseName(name []byte) (d [sha256.Size]byte, ok bool) {
	if len(name) != 2*len(d) {
		return d, false
	}
	if _, err := hex.Decode(d[:], name); err != nil {
		return d, false
	}
	for _, c := range name {
		if 'A' <= c && c <= 'F' {
			return d, false
		}
	}
	return d, true
}

// logStrays logs files where only directories of objects are expected.
func (s *Objects) logStrays() error {
	top, err := fs.ReadDir(s.o.Root.FS(), Dir)
	if err != nil {
		return err
	}
	for _, e := range top {
		if e.Name() != digest.SHA256.String() || !e.IsDir() {
			s.logUnexpected(filepath.Join(Dir, e.Name()))
		}
	}
	dirs, err := fs.ReadDir(s.o.Root.FS(), topPath)
	for _, e := range dirs {
		if p, err := hex.DecodeString(e.Name()); err != nil || len(p) != 1 || dirName(p[0]) != e.Name() || !e.IsDir() {
			s.logUnexpected(filepath.Join(topPath, e.Name()))
		}
	}
	return err
}

// logUnexpected logs a file or directory that is not of the store.
func (s *Objects) logUnexpected(name string) {
	s.o.Log.Warn("unexpected file below objects; left alone", "path", name)
}
