package carton

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"sort"

	"github.com/containerd/errdefs"
)

// IsFolder reports whether dir is a directory that a carton was unpacked to.
func IsFolder(dir string) bool {
	for _, name := range []string{nameManifest, nameInfo} {
		if info, err := os.Stat(dir + "/" + name); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// A Folder is a directory that a carton was unpacked to. It reads as an archive that holds the
// files of MANIFEST as they are, so all that holds for archives holds for it, and the model is the
// same. The archive is nowhere: its headers are in memory.
type Folder struct {
	root *os.Root
	all  []section
	size int64
}

// A section is a range of the archive: bytes, or a file.
type section struct {
	off, size int64
	data      []byte
	file      string
}

// OpenFolder opens a directory. Nothing outside of it is read, whatever links there are. Files
// that MANIFEST does not list are left out; those that it lists can be in LINKS alone. It returns
// errdefs.ErrInvalidArgument for anything but regular files and symbolic links.
func OpenFolder(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	f := &Folder{root: root}
	if err := f.lay(); err != nil {
		return nil, fmt.Errorf("carton in directory %s: %w", dir, errors.Join(err, root.Close()))
	}
	return f, nil
}

// lay puts the archive together.
func (f *Folder) lay() error {
	text, err := f.readSmall(nameManifest, MaxManifestSize)
	if err != nil {
		return err
	}
	entries, err := ParseManifest(text)
	if err != nil {
		return err
	}
	names := []string{nameManifest, nameLinks}
	for _, e := range entries {
		names = append(names, e.Path)
	}
	var directory []byte
	n := uint64(0)
	for _, name := range names {
		info, err := f.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) && name != nameManifest {
			continue // only in LINKS, or Open says that it is not there
		}
		if err != nil {
			return err
		}
		h, err := f.member(name, info)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		directory = append(directory, h...)
		n++
	}
	at := uint64(f.size)
	f.add(section{data: directory})
	f.add(section{data: endRecords(n, uint64(len(directory)), at)})
	return nil
}

func (f *Folder) add(s section) {
	s.off = f.size
	if s.data != nil {
		s.size = int64(len(s.data))
	}
	f.size += s.size
	f.all = append(f.all, s)
}

// member adds a file with its header, and returns its entry for the directory.
func (f *Folder) member(name string, info fs.FileInfo) ([]byte, error) {
	s := section{file: name, size: info.Size()}
	crc := uint32(0)
	mode := uint32(0o100644)
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := f.root.Readlink(name)
		if err != nil {
			return nil, err
		}
		s.data, mode = []byte(target), 0o120777
		s.size, crc = int64(len(target)), crc32.ChecksumIEEE(s.data)
	case !info.Mode().IsRegular():
		return nil, invalid("neither a file nor a symbolic link")
	case info.Size() <= MaxManifestSize: // larger ones are read in ranges, where no checksum counts
		p, err := f.readSmall(name, MaxManifestSize)
		if err != nil {
			return nil, err
		}
		s.size, crc = int64(len(p)), crc32.ChecksumIEEE(p)
	}
	at := uint64(f.size)
	f.add(section{data: zipHeader(name, uint64(s.size), crc, nil)})
	if s.size > 0 {
		f.add(s)
	}
	return zipHeader(name, uint64(s.size), crc, &central{mode, at}), nil
}

// readSmall reads a file of at most limit bytes.
func (f *Folder) readSmall(name string, limit int64) ([]byte, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(p)) > limit {
		err = invalid("%q has more than %d bytes", name, limit)
	}
	return p, err
}

// open opens a regular file.
func (f *Folder) open(name string) (*os.File, error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait
		return nil, invalid("%q is not a regular file", name)
	}
	return f.root.Open(name)
}

// Size returns the size of the archive.
func (f *Folder) Size() int64 { return f.size }

// Private returns false: the files are this machine's.
func (f *Folder) Private() bool { return false }

// Close closes the directory.
func (f *Folder) Close() error { return f.root.Close() }

// Range returns a range of the archive.
func (f *Folder) Range(_ context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off > f.size || n > f.size-off {
		return nil, invalid("%d bytes at %d of %d", n, off, f.size)
	}
	return &folderRange{f: f, off: off, end: off + n}, nil
}

// A folderRange reads a range of a Folder.
type folderRange struct {
	f        *Folder
	off, end int64
	file     *os.File // of the section at off
	name     string
}

// Read reads the next bytes of one section.
func (r *folderRange) Read(p []byte) (int, error) {
	if r.off == r.end {
		return 0, io.EOF
	}
	all := r.f.all
	s := all[sort.Search(len(all), func(i int) bool { return all[i].off+all[i].size > r.off })]
	at := r.off - s.off
	p = p[:min(int64(len(p)), s.size-at, r.end-r.off)]
	if s.data != nil {
		n := copy(p, s.data[at:])
		r.off += int64(n)
		return n, nil
	}
	if r.name != s.file {
		if err := r.Close(); err != nil {
			return 0, err
		}
		file, err := r.f.open(s.file)
		if err != nil {
			return 0, err
		}
		r.file, r.name = file, s.file
	}
	n, err := r.file.ReadAt(p, at)
	r.off += int64(n)
	if err == io.EOF && n < len(p) {
		return n, fmt.Errorf("%q is shorter than it was: %w: %w", s.file, io.ErrUnexpectedEOF, errdefs.ErrFailedPrecondition)
	}
	if n > 0 {
		err = nil
	}
	return n, err
}

// Close closes the file that is open.
func (r *folderRange) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file, r.name = nil, ""
	return err
}

// What an entry of the directory has more than the header of a member.
type central struct {
	mode   uint32
	offset uint64
}

// Fields of the records that do not change. All sizes are in the fields of zip64.
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT section 4.3
const (
	zipVersion = 45         // knows zip64
	zipUnix    = 3 << 8     // the attributes have a mode
	zipUTF8    = 1 << 11    // names
	zipEpoch   = 0x21 << 16 // 1980-01-01
	zipIn64    = math.MaxUint32
)

// zipHeader returns the local header of a stored member, or with c its entry in the directory.
func zipHeader(name string, size uint64, crc uint32, c *central) []byte {
	le := binary.LittleEndian
	extra := uint16(4 + 16)
	p := []byte("PK\x03\x04")
	if c != nil {
		extra += 8
		p = le.AppendUint16([]byte("PK\x01\x02"), zipUnix|zipVersion)
	}
	p = le.AppendUint16(p, zipVersion)
	p = le.AppendUint16(p, zipUTF8)
	p = le.AppendUint16(p, 0) // stored
	p = le.AppendUint32(p, zipEpoch)
	p = le.AppendUint32(p, crc)
	p = le.AppendUint32(p, zipIn64)
	p = le.AppendUint32(p, zipIn64)
	p = le.AppendUint16(p, uint16(len(name)))
	p = le.AppendUint16(p, extra)
	if c != nil {
		p = append(p, 0, 0, 0, 0, 0, 0) // comment, disk, internal attributes
		p = le.AppendUint32(p, c.mode<<16)
		p = le.AppendUint32(p, zipIn64)
	}
	p = append(p, name...)
	p = le.AppendUint16(p, 1) // zip64
	p = le.AppendUint16(p, extra-4)
	p = le.AppendUint64(p, size)
	p = le.AppendUint64(p, size)
	if c != nil {
		p = le.AppendUint64(p, c.offset)
	}
	return p
}

// endRecords returns what follows a directory of n entries that is size bytes long, at an offset.
func endRecords(n, size, offset uint64) []byte {
	le := binary.LittleEndian
	p := le.AppendUint64([]byte("PK\x06\x06"), 44) // bytes that follow
	p = le.AppendUint16(p, zipUnix|zipVersion)
	p = le.AppendUint16(p, zipVersion)
	p = le.AppendUint64(p, 0) // disks
	for _, v := range []uint64{n, n, size, offset} {
		p = le.AppendUint64(p, v)
	}
	p = le.AppendUint32(append(p, "PK\x06\x07"...), 0)
	p = le.AppendUint64(p, offset+size)
	p = le.AppendUint32(p, 1)
	p = le.AppendUint32(append(p, "PK\x05\x06"...), 0)
	p = le.AppendUint16(p, math.MaxUint16)
	p = le.AppendUint16(p, math.MaxUint16)
	p = le.AppendUint32(p, zipIn64)
	p = le.AppendUint32(p, zipIn64)
	return le.AppendUint16(p, 0)
}
