package zipdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/containerd/errdefs"
)

// Signatures and fixed sizes in bytes of the records of a zip archive.
const (
	sigLocal      = 0x04034b50
	sigDescriptor = 0x08074b50
	sigCentral    = 0x02014b50
	sigEnd        = 0x06054b50
	sigEnd64      = 0x06064b50
	sigLocator64  = 0x07064b50

	localSize     = 30
	centralSize   = 46
	endSize       = 22
	end64Size     = 56
	locator64Size = 20
)

// Values that stand for a value in zip64.
const (
	in64Short = math.MaxUint16
	in64      = math.MaxUint32
)

// The flags of an entry that are checked.
const (
	flagEncrypted  = 1 << 0
	flagDescriptor = 1 << 3
	flagPatch      = 1 << 5
	flagStrong     = 1 << 6
	flagMasked     = 1 << 13
	flagUTF8       = 1 << 11
)

// Kinds of extra fields.
const (
	extraZip64       = 0x0001
	extraUnicodePath = 0x7075
)

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// fields reads consecutive little-endian numbers. The caller checks the length.
type fields []byte

func (f *fields) u16() uint16 { return binary.LittleEndian.Uint16(f.next(2)) }
func (f *fields) u32() uint32 { return binary.LittleEndian.Uint32(f.next(4)) }
func (f *fields) u64() uint64 { return binary.LittleEndian.Uint64(f.next(8)) }

func (f *fields) next(n int) []byte {
	p := (*f)[:n]
	*f = (*f)[n:]
	return p
}

// A header is the content of a central or a local header.
type header struct {
	creator  uint16 // central only
	flags    uint16
	method   uint16
	crc      uint32
	packed   int64
	size     int64
	name     string
	external uint32 // central only
	offset   int64  // central only
}

// readCommon reads what local and central headers have in common, and returns the lengths of the name
// and of the extra fields.
func (h *header) readCommon(f *fields) (nameLen, extraLen int) {
	f.u16() // version needed
	h.flags, h.method = f.u16(), f.u16()
	f.u32() // time
	h.crc = f.u32()
	h.packed, h.size = int64(f.u32()), int64(f.u32())
	return int(f.u16()), int(f.u16())
}

// readCentral reads the first central header of p and returns what follows it.
func readCentral(p []byte) (h header, rest []byte, err error) {
	if len(p) < centralSize {
		return header{}, nil, errors.New("directory ends within an entry")
	}
	f := fields(p)
	if f.u32() != sigCentral {
		return header{}, nil, errors.New("no entry where the directory should have one")
	}
	h.creator = f.u16()
	nameLen, extraLen := h.readCommon(&f)
	commentLen, disk := int(f.u16()), f.u16()
	f.u16() // internal attributes
	h.external, h.offset = f.u32(), int64(f.u32())
	if len(f) < nameLen+extraLen+commentLen {
		return header{}, nil, errors.New("directory ends within an entry")
	}
	h.name = string(f.next(nameLen))
	extra := f.next(extraLen)
	f.next(commentLen)
	if disk != 0 {
		return h, nil, errors.New("archive in several parts")
	}
	return h, f, h.readExtra(extra)
}

// readLocal reads a local header, whose name and extra fields are also in p, and returns its
// length.
func readLocal(p []byte) (h header, n int64, err error) {
	short := errors.New("no local header, or one that is cut off")
	f := fields(p)
	if len(p) < localSize || f.u32() != sigLocal {
		return header{}, 0, short
	}
	nameLen, extraLen := h.readCommon(&f)
	if len(f) < nameLen+extraLen {
		return header{}, 0, short
	}
	h.name = string(f.next(nameLen))
	return h, int64(localSize + nameLen + extraLen), h.readExtra(f.next(extraLen))
}

// readExtra reads the extra fields. The zip64 field has the values that do not fit into the fixed
// fields.
func (h *header) readExtra(p []byte) error {
	var want []*int64
	for _, v := range []*int64{&h.size, &h.packed, &h.offset} {
		if *v == in64 {
			want = append(want, v)
		}
	}
	found := false
	for f := fields(p); len(f) >= 4; {
		kind, n := f.u16(), int(f.u16())
		if n > len(f) {
			return errors.New("extra field that is cut off")
		}
		v := fields(f.next(n))
		switch {
		case kind == extraZip64 && found:
			return errors.New("two zip64 fields")
		case kind == extraZip64:
			found = true
			if err := v.read64(want); err != nil {
				return err
			}
		case kind == extraUnicodePath && n > 5 && v[0] == 1:
			v.next(1)
			if sum := v.u32(); sum == crc32.ChecksumIEEE([]byte(h.name)) && string(v) != h.name {
				return errors.New("extra field with another name")
			}
		}
	}
	if len(want) > 0 && !found {
		return errors.New("no zip64 field where a value stands for it")
	}
	return nil
}

// read64 reads values from a zip64 field.
func (f *fields) read64(values []*int64) error {
	for _, v := range values {
		if len(*f) < 8 {
			return errors.New("zip64 field without the values it stands for")
		}
		n := f.u64()
		if n > math.MaxInt64 {
			return errors.New("zip64 field with a size above 2^63")
		}
		*v = int64(n)
	}
	return nil
}

// An end has the facts about the directory from the end record and that of zip64.
type end struct {
	entries uint64
	size    uint64
	offset  uint64
	start   uint64 // where the directory must end: at the first of the two records
}

// findEnd finds the end record in tail, which is the end of an archive and starts at base.
func findEnd(tail []byte, base int64) (end, error) {
	at := -1
	for i := len(tail) - endSize; i >= 0; i-- {
		if binary.LittleEndian.Uint32(tail[i:]) != sigEnd {
			continue
		}
		if i+endSize+int(binary.LittleEndian.Uint16(tail[i+20:])) != len(tail) {
			if at < 0 && len(tail)-i <= endSize+math.MaxUint16 {
				return end{}, invalid("bytes after the end of the archive, or a comment that looks like an end")
			}
			continue
		}
		if at >= 0 {
			return end{}, invalid("two ends of the archive")
		}
		at = i
	}
	if at < 0 {
		return end{}, invalid("not a zip archive: no end record")
	}
	f := fields(tail[at+4:])
	disk, dirDisk := f.u16(), f.u16()
	here, entries := f.u16(), f.u16()
	e := end{entries: uint64(entries), size: uint64(f.u32()), offset: uint64(f.u32()), start: uint64(base) + uint64(at)}
	if disk != 0 || dirDisk != 0 || here != entries {
		return end{}, invalid("archive in several parts")
	}
	// Some readers use a locator even if no value stands for it.
	if at >= locator64Size && binary.LittleEndian.Uint32(tail[at-locator64Size:]) == sigLocator64 {
		return e.read64(tail[:at], base)
	}
	if e.size == in64 || e.offset == in64 {
		return end{}, invalid("no zip64 record where a value stands for it")
	}
	return e, nil
}

// read64 reads the records of zip64 at the end of p.
func (e end) read64(p []byte, base int64) (end, error) {
	f := fields(p[len(p)-locator64Size+4:])
	disk, offset, disks := f.u32(), f.u64(), f.u32()
	if disk != 0 || disks > 1 {
		return end{}, invalid("archive in several parts")
	}
	p = p[:len(p)-locator64Size]
	if offset < uint64(base) || offset > uint64(base)+uint64(len(p)) || uint64(base)+uint64(len(p))-offset < end64Size {
		return end{}, invalid("zip64 record is not where its locator says")
	}
	f = fields(p[offset-uint64(base):])
	if f.u32() != sigEnd64 {
		return end{}, invalid("zip64 record is not where its locator says")
	}
	if n := f.u64(); n != uint64(len(f)) {
		return end{}, invalid("zip64 record does not end at its locator")
	}
	f.u32() // versions
	disk, dirDisk := f.u32(), f.u32()
	here, entries := f.u64(), f.u64()
	e64 := end{entries: entries, size: f.u64(), offset: f.u64(), start: offset}
	if disk != 0 || dirDisk != 0 || here != entries {
		return end{}, invalid("archive in several parts")
	}
	if e.entries != in64Short && e.entries != e64.entries || e.size != in64 && e.size != e64.size || e.offset != in64 && e.offset != e64.offset {
		return end{}, invalid("the zip64 record contradicts the end record")
	}
	return e64, nil
}
