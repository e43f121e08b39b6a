package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/containerd/errdefs"
)

// A decoder reads a header from pieces of any size. It has a state for each kind of field, which
// receives exactly the requested bytes, and requests the next field with want or after:
//
//	magic → version → counts → key* → tensor* → done
//	key:    keyLength → keyName → value
//	value:  scalar | textLength → text | arrayHead → value*
//	tensor: tensorName → tensorRank → tensorInfo
type decoder struct {
	h     *Header
	order binary.ByteOrder
	size  int64  // of the file, zero if not known
	limit uint64 // maximal size of the header in bytes
	pos   uint64 // end of the requested field, in bytes from the start of the file

	next state  // nil after the end of the header
	drop uint64 // bytes to skip before the field
	need int    // size of the field in bytes
	buf  []byte // start of a field that comes in more than one piece

	keysLeft    uint64
	tensorsLeft uint64

	key    key             // the destination of the value being read
	seen   map[string]bool // names of keys that already have a value
	room   int             // bytes of text that can still be kept
	kind   uint32
	arrays []array // open arrays, the innermost last

	contexts map[string]uint64 // context lengths by key

	rank   uint32
	sums   sums
	tensor func(off int64) // may be nil
}

type state func(d *decoder, field []byte) error

// An array is an array with remaining items.
type array struct {
	kind uint32
	left uint64
}

func newDecoder(o Options) *decoder {
	d := &decoder{
		h:     &Header{Alignment: defaultAlignment},
		order: binary.LittleEndian,
		size:  o.Size,
		limit: MaxHeader,
		seen:  map[string]bool{},
		room:  maxText,
		sums:  sums{types: map[string]uint64{}},

		contexts: map[string]uint64{},
		tensor:   o.Tensor,
	}
	if o.Size > 0 {
		d.limit = min(d.limit, uint64(o.Size))
	}
	d.next, d.need, d.pos = (*decoder).magic, 4, 4
	return d
}

// write receives the next bytes of the file.
func (d *decoder) write(p []byte) error {
	for d.next != nil {
		n := min(d.drop, uint64(len(p)))
		d.drop -= n
		p = p[n:]
		if d.drop > 0 {
			return nil
		}
		field := p
		if len(d.buf) > 0 || len(p) < d.need {
			n := min(len(p), d.need-len(d.buf))
			d.buf = append(d.buf, p[:n]...)
			p = p[n:]
			if len(d.buf) < d.need {
				return nil
			}
			field = d.buf
		} else {
			field, p = p[:d.need], p[d.need:]
		}
		d.buf = d.buf[:0] // a state does not keep the field
		if err := d.next(d, field); err != nil {
			return err
		}
	}
	return nil
}

// want requests a field of n bytes.
func (d *decoder) want(n uint64, next state) error { return d.after(0, n, next) }

// after requests a field of n bytes after skipping drop bytes.
func (d *decoder) after(drop, n uint64, next state) error {
	if left := d.left(); drop > left || n > left-drop {
		return invalid("goes on after %d bytes", d.limit)
	}
	d.pos += drop + n
	d.drop, d.need, d.next = drop, int(n), next
	return nil
}

// left returns the remaining size of the header.
func (d *decoder) left() uint64 { return d.limit - d.pos }

// lengthSize returns the size of counts and lengths.
func (d *decoder) lengthSize() uint64 {
	if d.h.Version == 1 {
		return 4
	}
	return 8
}

func (d *decoder) length(p []byte) uint64 {
	if d.h.Version == 1 {
		return uint64(d.order.Uint32(p))
	}
	return d.order.Uint64(p)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("GGUF header: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func (d *decoder) magic(p []byte) error {
	if string(p) != "GGUF" {
		return invalid("starts with %q", p)
	}
	return d.want(4, (*decoder).version)
}

// version reads the version. It is the only indication of the byte order: big endian was introduced
// with version 3.
func (d *decoder) version(p []byte) error {
	v := d.order.Uint32(p)
	if v == 3<<24 {
		d.order, v = binary.BigEndian, 3
	}
	if v < 1 || v > 3 {
		return invalid("version %d", v)
	}
	d.h.Version = int(v)
	return d.want(2*d.lengthSize(), (*decoder).counts)
}

func (d *decoder) counts(p []byte) error {
	d.tensorsLeft, d.keysLeft = d.length(p), d.length(p[d.lengthSize():])
	if smallest := d.lengthSize() + 4 + 1; d.keysLeft > maxKeys || d.keysLeft > d.left()/smallest {
		return invalid("%d keys", d.keysLeft)
	}
	if smallest := d.lengthSize() + 4 + 4 + 8; d.tensorsLeft > maxTensors || d.tensorsLeft > d.left()/smallest {
		return invalid("%d tensors", d.tensorsLeft)
	}
	d.h.Tensors = int64(d.tensorsLeft)
	return d.nextKey()
}

func (d *decoder) nextKey() error {
	if d.keysLeft == 0 {
		d.h.ContextLength = d.contexts[d.h.Architecture+contextKey]
		return d.nextTensor()
	}
	d.keysLeft--
	return d.want(d.lengthSize(), (*decoder).keyLength)
}

func (d *decoder) keyLength(p []byte) error {
	n := d.length(p)
	if n > maxKey {
		return invalid("key of %d bytes", n)
	}
	return d.want(n+4, (*decoder).keyName)
}

func (d *decoder) keyName(p []byte) error {
	n := len(p) - 4
	d.key = d.findKey(p[:n])
	return d.value(d.order.Uint32(p[n:]))
}

// value requests a value of the given type.
func (d *decoder) value(kind uint32) error {
	d.kind = kind
	switch {
	case kind >= uint32(len(valueSizes)):
		return invalid("value of type %d", kind)
	case kind == valueString:
		return d.want(d.lengthSize(), (*decoder).textLength)
	case kind == valueArray:
		return d.want(4+d.lengthSize(), (*decoder).arrayHead)
	}
	return d.want(valueSizes[kind], (*decoder).scalar)
}

// nextValue continues after a value: with the next item of the open array, or the next key.
func (d *decoder) nextValue() error {
	for len(d.arrays) > 0 {
		a := &d.arrays[len(d.arrays)-1]
		if a.left > 0 {
			a.left--
			return d.value(a.kind)
		}
		d.arrays = d.arrays[:len(d.arrays)-1]
	}
	return d.nextKey()
}

func (d *decoder) valueDropped([]byte) error { return d.nextValue() }

func (d *decoder) scalar(p []byte) error {
	v, ok := d.integer(p)
	if ok && len(d.arrays) == 0 {
		if err := d.setNumber(v); err != nil {
			return err
		}
	}
	return d.nextValue()
}

// integer returns a non-negative integer of any size.
func (d *decoder) integer(p []byte) (uint64, bool) {
	var v uint64
	switch len(p) {
	case 1:
		v = uint64(p[0])
	case 2:
		v = uint64(d.order.Uint16(p))
	case 4:
		v = uint64(d.order.Uint32(p))
	case 8:
		v = d.order.Uint64(p)
	}
	switch d.kind {
	case valueU8, valueU16, valueU32, valueU64:
		return v, true
	case valueI8, valueI16, valueI32, valueI64:
		return v, v>>(8*len(p)-1) == 0
	}
	return 0, false
}

func (d *decoder) textLength(p []byte) error {
	n := d.length(p)
	keep := d.key.text != nil && len(d.arrays) == 0 || d.key.list != nil && len(d.arrays) == 1
	if keep && n <= uint64(d.room) {
		return d.want(n, (*decoder).text)
	}
	return d.after(n, 0, (*decoder).valueDropped)
}

func (d *decoder) text(p []byte) error {
	s, ok := d.clean(p)
	switch {
	case !ok:
	case d.key.text != nil:
		*d.key.text(d.h) = s
		d.seen[d.key.name] = true
	default:
		if list := d.key.list(d.h); len(*list) < maxList {
			*list = append(*list, s)
		}
		d.seen[d.key.name] = true
	}
	return d.nextValue()
}

func (d *decoder) arrayHead(p []byte) error {
	a := array{kind: d.order.Uint32(p), left: d.length(p[4:])}
	if len(d.arrays) == maxNesting {
		return invalid("arrays nested deeper than %d levels", maxNesting)
	}
	if a.kind >= uint32(len(valueSizes)) {
		return invalid("array of values of type %d", a.kind)
	}
	size, smallest := valueSizes[a.kind], valueSizes[a.kind]
	switch a.kind {
	case valueString:
		smallest = d.lengthSize()
	case valueArray:
		smallest = 4 + d.lengthSize()
	}
	if a.left > d.left()/smallest {
		return invalid("array of %d values", a.left)
	}
	if size > 0 {
		return d.after(a.left*size, 0, (*decoder).valueDropped)
	}
	d.arrays = append(d.arrays, a)
	return d.nextValue()
}

// setNumber sets the value of the current key.
func (d *decoder) setNumber(v uint64) error {
	switch {
	case d.key.number != nil:
		*d.key.number(d.h) = v
	case d.key.set != nil:
		if err := d.key.set(d, v); err != nil {
			return err
		}
	default:
		return nil
	}
	d.seen[d.key.name] = true
	return nil
}

func (d *decoder) setFileType(v uint64) error {
	d.h.FileType = fileTypes[v]
	return nil
}

func (d *decoder) setAlignment(v uint64) error {
	if v == 0 || v%8 != 0 || v > maxAlignment {
		return invalid("alignment %d", v)
	}
	d.h.Alignment = int64(v)
	return nil
}

func (d *decoder) nextTensor() error {
	if d.tensorsLeft == 0 {
		return d.finish()
	}
	d.tensorsLeft--
	return d.want(d.lengthSize(), (*decoder).tensorName)
}

func (d *decoder) tensorName(p []byte) error {
	n := d.length(p)
	if n > maxKey {
		return invalid("tensor name of %d bytes", n)
	}
	return d.after(n, 4, (*decoder).tensorRank)
}

func (d *decoder) tensorRank(p []byte) error {
	d.rank = d.order.Uint32(p)
	if d.rank > maxRank {
		return invalid("tensor with %d dimensions", d.rank)
	}
	return d.want(uint64(d.rank)*d.lengthSize()+4+8, (*decoder).tensorInfo)
}

func (d *decoder) tensorInfo(p []byte) error {
	var shape [maxRank]uint64
	for i := range d.rank {
		shape[i] = d.length(p)
		p = p[d.lengthSize():]
	}
	kind, off := d.order.Uint32(p), d.order.Uint64(p[4:])
	if off%uint64(d.h.Alignment) != 0 {
		return invalid("tensor at offset %d, the alignment is %d", off, d.h.Alignment)
	}
	if off > math.MaxInt64 {
		return invalid("tensor at offset %d", off)
	}
	if err := d.sums.add(shape[:d.rank], tensorTypes[kind], off); err != nil {
		return err
	}
	if d.tensor != nil {
		d.tensor(int64(off))
	}
	return d.nextTensor()
}

// finish checks that the tensors fit into the file without overlaps.
func (d *decoder) finish() error {
	d.next, d.buf = nil, nil
	align := uint64(d.h.Alignment)
	start := (d.pos + align - 1) / align * align
	d.sums.into(d.h)
	d.h.DataOffset = int64(start)
	end := uint64(d.h.DataSize)
	if start > math.MaxInt64-end {
		return invalid("%d bytes of tensors", end)
	}
	if d.size > 0 && d.h.Tensors > 0 && start+end > uint64(d.size) {
		return invalid("tensors end at %d, the file at %d", start+end, d.size)
	}
	if d.sums.bytes > end {
		return invalid("tensors of %d bytes in %d bytes", d.sums.bytes, end)
	}
	return nil
}
