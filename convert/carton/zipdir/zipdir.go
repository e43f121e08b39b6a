package zipdir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// Limits of an archive.
const (
	// MaxEntries limits the number of entries.
	MaxEntries = 200_000

	// MaxDirectorySize limits the directory, in bytes.
	MaxDirectorySize = 64 << 20 // 64 MiB

	// directoryWeight is the memory that a byte of the directory takes, in bytes, with its entries.
	directoryWeight = 4
)

// tailSize is the number of bytes at the end of an archive that are read first: the end record with
// the longest comment, the records of zip64, and the directory of a small archive.
const tailSize = 66 << 10

// The supported methods.
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT section 4.4.5
const (
	Stored  = 0
	Deflate = 8
	Zstd    = 93
)

// An Entry is one entry of the directory.
type Entry struct {
	Name   string // clean; without the slash of a directory
	Type   string // filetable.TypeReg, TypeDir or TypeSymlink
	Method uint16 // Stored, Deflate or Zstd
	Packed int64  // bytes in the archive
	Size   int64  // bytes of the content

	raw   header
	limit int64 // where the next entry or the directory starts
}

// Start returns the offset of the local header of an entry.
func (e *Entry) Start() int64 { return e.raw.offset }

// Span returns the number of bytes from Start to the next entry.
func (e *Entry) Span() int64 { return e.limit - e.raw.offset }

// Read returns the entries of an archive of the given size, in the order of its directory. It
// returns errdefs.ErrInvalidArgument, naming the entry, for an invalid archive, and
// errdefs.ErrNotImplemented for one with entries that are compressed by another method or encrypted.
//
// room reserves memory, in bytes, before it is used.
func Read(r io.ReaderAt, size int64, room func(n int64) error) ([]Entry, error) {
	if size < endSize {
		return nil, invalid("not a zip archive: %d bytes", size)
	}
	tail := make([]byte, min(size, tailSize))
	base := size - int64(len(tail))
	if err := readFull(r, tail, base); err != nil {
		return nil, fmt.Errorf("end of the archive: %w", err)
	}
	e, err := findEnd(tail, base)
	if err != nil {
		return nil, err
	}
	switch {
	case e.entries > MaxEntries:
		return nil, invalid("%d entries, more than %d", e.entries, MaxEntries)
	case e.size > MaxDirectorySize:
		return nil, invalid("directory of %d bytes, more than %d", e.size, MaxDirectorySize)
	case e.offset > e.start || e.start-e.offset != e.size:
		return nil, invalid("directory of %d bytes at %d does not end at %d, where the end record is", e.size, e.offset, e.start)
	}
	if err := room(directoryWeight * int64(e.size)); err != nil {
		return nil, err
	}
	dir := make([]byte, e.size)
	if int64(e.offset) >= base {
		copy(dir, tail[int64(e.offset)-base:])
	} else if err := readFull(r, dir, int64(e.offset)); err != nil {
		return nil, fmt.Errorf("directory of the archive: %w", err)
	}
	return parse(dir, int(e.entries), int64(e.offset))
}

// readFull fills p from offset off, with one call of ReadAt.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, off, int64(len(p))), p)
	return err
}

// parse parses a directory that starts at the given offset.
func parse(p []byte, count int, start int64) ([]Entry, error) {
	var entries []Entry
	seen := map[string]bool{}
	for i := range count {
		h, rest, err := readCentral(p)
		if err != nil {
			return nil, invalid("entry %d %.300q: %w", i, h.name, err)
		}
		p = rest
		e, err := newEntry(h)
		if err != nil {
			return nil, fmt.Errorf("entry %d %.300q: %w", i, h.name, err)
		}
		if seen[e.Name] {
			return nil, invalid("entry %d %q: duplicate name", i, e.Name)
		}
		seen[e.Name] = true
		entries = append(entries, e)
	}
	if len(p) != 0 {
		return nil, invalid("%d bytes after the last of %d entries of the directory", len(p), count)
	}
	return entries, setLimits(entries, start)
}

// maxSlack limits the bytes of an entry that the directory does not describe: the extra fields of
// the local header and the data descriptor.
const maxSlack = math.MaxUint16 + descriptor64

// setLimits determines where each entry ends, and checks that the entries are consecutive from the
// first byte to the directory, which starts at the given offset.
func setLimits(entries []Entry, start int64) error {
	order := make([]*Entry, len(entries))
	for i := range entries {
		order[i] = &entries[i]
	}
	slices.SortFunc(order, func(a, b *Entry) int { return cmp.Compare(a.raw.offset, b.raw.offset) })
	first := start
	if len(order) > 0 {
		first = order[0].raw.offset
	}
	if first != 0 {
		return invalid("%d bytes before the first entry", first)
	}
	for i, e := range order {
		e.limit = start
		if i+1 < len(order) {
			e.limit = order[i+1].raw.offset
		}
		least := int64(localSize + len(e.raw.name))
		switch span := e.Span(); {
		case span < least || e.Packed > span-least:
			return invalid("entry %q: reaches into the next one", e.Name)
		case span-least-e.Packed > maxSlack:
			return invalid("entry %q: %d bytes after it belong to no entry", e.Name, span-least-e.Packed)
		}
	}
	return nil
}

// Compression ratios that data cannot exceed: 258 bytes in 2 bits, and 128 KiB in a block of 4
// bytes.
// https://www.rfc-editor.org/rfc/rfc1951, https://www.rfc-editor.org/rfc/rfc8878
const (
	maxDeflateRatio = 1032
	maxZstdRatio    = 32 << 10
)

// File types in the upper half of the external attributes of archives from Unix.
const (
	typeMask    = 0o170000
	typeFile    = 0o100000
	typeDir     = 0o040000
	typeSymlink = 0o120000

	creatorUnix  = 3
	creatorMacOS = 19
)

// newEntry checks an entry by its central header.
func newEntry(h header) (Entry, error) {
	e := Entry{Type: filetable.TypeReg, Method: h.method, Packed: h.packed, Size: h.size, raw: h}
	name, isDir := strings.CutSuffix(h.name, "/")
	clean, err := filetable.CleanPath(name)
	if err != nil {
		return Entry{}, err
	}
	if e.Name = clean; clean != name {
		return Entry{}, invalid("the name is not clean")
	}
	if isDir {
		e.Type = filetable.TypeDir
	}
	if h.flags&(flagEncrypted|flagStrong|flagMasked) != 0 {
		return Entry{}, fmt.Errorf("encrypted: %w", errdefs.ErrNotImplemented)
	}
	if h.flags&flagPatch != 0 {
		return Entry{}, fmt.Errorf("is a patch: %w", errdefs.ErrNotImplemented)
	}
	if c := h.creator >> 8; c == creatorUnix || c == creatorMacOS {
		switch t := h.external >> 16 & typeMask; {
		case t == typeDir && !isDir, t == typeSymlink && isDir, t == typeFile && isDir:
			return Entry{}, invalid("the mode says something else than the name")
		case t == typeSymlink:
			e.Type = filetable.TypeSymlink
		case t != 0 && t != typeDir && t != typeFile:
			return Entry{}, invalid("neither a file, nor a directory, nor a symbolic link")
		}
	}
	if isDir && h.size != 0 {
		return Entry{}, invalid("a directory with %d bytes of data", h.size)
	}
	return e, e.checkSize()
}

func (e *Entry) checkSize() error {
	var most int64
	switch e.Method {
	case Stored:
		if e.Packed != e.Size {
			return invalid("stored, with sizes %d and %d", e.Packed, e.Size)
		}
		return nil
	case Deflate:
		most = maxDeflateRatio
	case Zstd:
		most = maxZstdRatio
	default:
		return fmt.Errorf("unsupported method %d: %w", e.Method, errdefs.ErrNotImplemented)
	}
	if e.Packed < math.MaxInt64/most && e.Size > e.Packed*most {
		return invalid("%d bytes cannot come out of %d", e.Size, e.Packed)
	}
	return nil
}

// Sizes of a data descriptor, without its optional signature.
const (
	descriptor32 = 12
	descriptor64 = 24 // with signature
)

// HeaderSize limits the bytes of an entry with its local header.
func (e *Entry) HeaderSize() int64 { return e.Span() - e.Packed }

// Locate returns the offset of an entry's data from Entry.Start. p has the bytes from there:
// HeaderSize of them are sufficient. It returns errdefs.ErrInvalidArgument if the local header
// differs from the directory.
func (e *Entry) Locate(p []byte) (int64, error) {
	h, n, err := readLocal(p)
	if err == nil {
		err = e.compare(h, n)
	}
	if err != nil {
		return 0, invalid("entry %q: %w", e.Name, err)
	}
	return n, nil
}

// compare compares a local header of n bytes with the directory.
func (e *Entry) compare(h header, n int64) error {
	const ignore = flagUTF8 | 0b110 // the latter are hints about the compression level
	deferred := h.flags&flagDescriptor != 0
	left := e.Span() - n - e.Packed
	switch {
	case h.name != e.raw.name:
		return fmt.Errorf("the local header has the name %.300q", h.name)
	case h.method != e.raw.method:
		return fmt.Errorf("the local header has method %d, the directory %d", h.method, e.raw.method)
	case (h.flags^e.raw.flags)&^ignore != 0:
		return fmt.Errorf("the local header has flags %#x, the directory %#x", h.flags, e.raw.flags)
	case !known(h.size, e.Size, deferred) || !known(h.packed, e.Packed, deferred):
		return fmt.Errorf("the local header has sizes %d and %d, the directory %d and %d", h.packed, h.size, e.Packed, e.Size)
	case !known(int64(h.crc), int64(e.raw.crc), deferred):
		return errors.New("the local header has another checksum")
	case left < 0:
		return errors.New("reaches into the next one")
	case !deferred && left != 0:
		return fmt.Errorf("%d bytes after it belong to no entry", left)
	case deferred && left != descriptor32 && left != descriptor32+4 && left != descriptor64 && left != descriptor64-4:
		return fmt.Errorf("%d bytes after it are not a data descriptor", left)
	}
	return nil
}

// known reports whether a local header has the right value, or leaves it to the data descriptor.
func known(got, want int64, deferred bool) bool { return got == want || deferred && got == 0 }
