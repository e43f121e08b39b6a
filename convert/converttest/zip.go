package converttest

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/ballast-dev/ballast/store/filetable"
)

// A ZipEntry is an entry of a zip archive that is written field by field, so that it can be
// wrong.
type ZipEntry struct {
	Name   string
	Data   []byte // the content
	Method uint16 // 0, 8 or 93; with Packed any other

	Packed     []byte // the bytes in the archive; nil means Data by Method
	Mode       uint32 // of Unix, with the type; zero means none
	Zip64      bool   // sizes and offset in zip64 fields
	Descriptor bool   // sizes after the data and not in the local header
	After      []byte // bytes after it that belong to nothing

	// Local and Central change what is written of it, if not nil.
	Local, Central func(*ZipHeader)
}

// A ZipHeader has the fields of a local or central header.
type ZipHeader struct {
	Name         string
	Flags        uint16
	Method       uint16
	CRC          uint32
	Packed, Size uint64
	Offset       uint64 // central only
	External     uint32 // central only
	Extra        []byte
	Zip64        bool
}

// A Zip is a zip archive.
type Zip struct {
	Entries []ZipEntry
	Before  []byte // the first entry
	Comment []byte
	After   []byte // the end record
	Zip64   bool

	// End changes the end records, if not nil.
	End func(*ZipEnd)
}

// A ZipEnd has the fields of the end records. Those with 64 are of the zip64 record.
type ZipEnd struct {
	Entries, Entries64 uint64
	Size, Size64       uint64
	Offset, Offset64   uint64
	Record             uint64 // offset of the zip64 record in its locator
}

// Bytes returns the archive.
func (z Zip) Bytes() []byte {
	var b zipBuffer
	b.Write(z.Before)
	var central zipBuffer
	for _, e := range z.Entries {
		h := e.header()
		h.Offset = uint64(b.Len())
		c := h
		if e.Descriptor {
			h.CRC, h.Packed, h.Size = 0, 0, 0
		}
		if e.Local != nil {
			e.Local(&h)
		}
		b.header(h, false)
		b.Write(e.packed())
		if e.Descriptor {
			b.put(uint32(0x08074b50), c.CRC)
			if e.Zip64 {
				b.put(c.Packed, c.Size)
			} else {
				b.put(uint32(c.Packed), uint32(c.Size))
			}
		}
		b.Write(e.After)
		if e.Central != nil {
			e.Central(&c)
		}
		central.header(c, true)
	}
	n, off, size := uint64(len(z.Entries)), uint64(b.Len()), uint64(central.Len())
	b.Write(central.Bytes())
	end := ZipEnd{Entries: n, Entries64: n, Size: size, Size64: size, Offset: off, Offset64: off, Record: uint64(b.Len())}
	if z.Zip64 {
		end.Entries, end.Size, end.Offset = math.MaxUint16, math.MaxUint32, math.MaxUint32
	}
	if z.End != nil {
		z.End(&end)
	}
	b.end(end, z.Zip64, z.Comment)
	b.Write(z.After)
	return b.Bytes()
}

func (e ZipEntry) packed() []byte {
	if e.Packed != nil {
		return e.Packed
	}
	switch e.Method {
	case 0:
		return e.Data
	case 8:
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.DefaultCompression)
		must(err)
		_, err = w.Write(e.Data)
		must(err)
		must(w.Close())
		return b.Bytes()
	case 93:
		return Zstd(e.Data)
	}
	panic(fmt.Sprintf("converttest: internal error: method %d", e.Method))
}

// Zstd returns p as a zstd frame.
func Zstd(p []byte) []byte { return Compress(p, filetable.CodecZstd) }

func (e ZipEntry) header() ZipHeader {
	h := ZipHeader{
		Name: e.Name, Method: e.Method, CRC: crc32.ChecksumIEEE(e.Data),
		Packed: uint64(len(e.packed())), Size: uint64(len(e.Data)), External: e.Mode << 16, Zip64: e.Zip64,
	}
	if e.Descriptor {
		h.Flags |= 1 << 3
	}
	return h
}

type zipBuffer struct{ bytes.Buffer }

// put appends numbers.
func (b *zipBuffer) put(values ...any) {
	for _, v := range values {
		must(binary.Write(b, binary.LittleEndian, v))
	}
}

func (b *zipBuffer) header(h ZipHeader, central bool) {
	extra := h.Extra
	packed, size, offset := uint32(h.Packed), uint32(h.Size), uint32(h.Offset)
	if h.Zip64 {
		var x zipBuffer
		x.put(uint16(1), uint16(16), h.Size, h.Packed)
		packed, size = math.MaxUint32, math.MaxUint32
		if central {
			x.put(h.Offset)
			x.Bytes()[2] = 24
			offset = math.MaxUint32
		}
		extra = append(x.Bytes(), extra...)
	}
	if central {
		b.put(uint32(0x02014b50), uint16(3<<8|63))
	} else {
		b.put(uint32(0x04034b50))
	}
	const firstDay = uint32(0x00210000) // of 1980
	b.put(uint16(10), h.Flags, h.Method, firstDay, h.CRC, packed, size, uint16(len(h.Name)), uint16(len(extra)))
	if central {
		var comment, disk, internal uint16
		b.put(comment, disk, internal, h.External, offset)
	}
	b.WriteString(h.Name)
	b.Write(extra)
}

func (b *zipBuffer) end(e ZipEnd, zip64 bool, comment []byte) {
	if zip64 {
		var disks uint64
		b.put(uint32(0x06064b50), uint64(44), uint16(3<<8|63), uint16(45), disks, e.Entries64, e.Entries64, e.Size64, e.Offset64)
		b.put(uint32(0x07064b50), uint32(0), e.Record, uint32(1))
	}
	b.put(uint32(0x06054b50), uint32(0), uint16(e.Entries), uint16(e.Entries), uint32(e.Size), uint32(e.Offset), uint16(len(comment)))
	b.Write(comment)
}
