package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"github.com/containerd/errdefs"
)

// The format of a bbolt file: pages with a header of 16 bytes (id, flags, count of elements,
// overflow: pages that follow and belong to it), elements of 16 bytes, and the keys and values that
// they point to. Two meta pages are written in turns; the valid one with the higher transaction
// counts. https://github.com/etcd-io/bbolt/tree/v1.5.0/internal/common
const (
	pageHeader  = 16
	pageElement = 16
	metaLen     = 64

	pageBranch   = 0x01
	pageLeaf     = 0x02
	pageFreelist = 0x10

	metaMagic    = 0xED0CDAED
	metaVersion  = 2
	noFreelist   = ^uint64(0)
	bucketLeaf   = 0x01
	bucketHeader = 16

	maxPage = 1 << 30 // bytes of a page with its overflow; ours have a few KiB, a large table some MiB
)

var native = binary.NativeEndian

// A reader walks the file of a database without trusting it: bbolt maps the file, and a damaged one
// makes it panic, loop or fault. It visits each page once, in the newest state, and stops at nothing
// that can be left out.
type reader struct {
	f        *os.File
	size     int64
	pageSize int64
	high     uint64 // pages from here on are unused
	visited  map[uint64]bool
	problems []error

	// record takes a value of a bucket. The bytes are valid until it returns.
	record func(bucket, key, value []byte)
}

// walk calls record for each value of the file, and returns what is wrong with the file. It returns
// errdefs.ErrDataLoss for that; other errors are about reading.
func walk(f *os.File, record func(bucket, key, value []byte)) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	r := &reader{f: f, size: info.Size(), visited: map[uint64]bool{}, record: record}
	root, free, err := r.meta()
	if err != nil {
		return err
	}
	r.tree(root, nil, nil, nil, true)
	r.freelist(free)
	return errors.Join(r.problems...)
}

func (r *reader) bad(format string, a ...any) {
	if len(r.problems) < 10 {
		r.problems = append(r.problems, fmt.Errorf(format+": %w", append(a, errdefs.ErrDataLoss)...))
	}
}

// meta finds the newest valid meta page.
func (r *reader) meta() (root, free uint64, err error) {
	var newest uint64
	found := false
	for _, at := range []int64{0, int64(os.Getpagesize())} {
		p := make([]byte, pageHeader+metaLen)
		if _, err := r.f.ReadAt(p, at); err == io.EOF {
			continue
		} else if err != nil {
			return 0, 0, err
		}
		m := p[pageHeader:]
		sum := fnv.New64a()
		sum.Write(m[:metaLen-8])
		pageSize := int64(native.Uint32(m[8:]))
		if native.Uint32(m) != metaMagic || native.Uint32(m[4:]) != metaVersion || native.Uint64(m[56:]) != sum.Sum64() || pageSize != int64(os.Getpagesize()) {
			continue
		}
		if tx := native.Uint64(m[48:]); !found || tx > newest {
			found, newest = true, tx
			r.pageSize, r.high = pageSize, native.Uint64(m[40:])
			root, free = native.Uint64(m[16:]), native.Uint64(m[32:])
		}
	}
	if !found {
		return 0, 0, fmt.Errorf("no valid meta page: %w", errdefs.ErrDataLoss)
	}
	return root, free, nil
}

// page reads a page with its overflow, once.
func (r *reader) page(id uint64) (p []byte, flags uint16, count int, ok bool) {
	if id < 2 || id >= r.high || int64(id+1)*r.pageSize > r.size {
		r.bad("page %d is not in the file", id)
		return nil, 0, 0, false
	}
	head := make([]byte, pageHeader)
	if _, err := r.f.ReadAt(head, int64(id)*r.pageSize); err != nil {
		r.bad("page %d: %v", id, err)
		return nil, 0, 0, false
	}
	over := uint64(native.Uint32(head[12:]))
	n := int64(over+1) * r.pageSize
	if native.Uint64(head) != id || id+over >= r.high || int64(id)*r.pageSize+n > r.size || n > maxPage {
		r.bad("page %d has a wrong header", id)
		return nil, 0, 0, false
	}
	for i := id; i <= id+over; i++ {
		if r.visited[i] {
			r.bad("page %d is used twice", i)
			return nil, 0, 0, false
		}
	}
	for i := id; i <= id+over; i++ {
		r.visited[i] = true
	}
	p = make([]byte, n)
	if _, err := r.f.ReadAt(p, int64(id)*r.pageSize); err != nil {
		r.bad("page %d: %v", id, err)
		return nil, 0, 0, false
	}
	return p, native.Uint16(head[8:]), int(native.Uint16(head[10:])), true
}

// tree walks the pages of a bucket from one on. Its keys are from low on and below high, where
// those are not nil. top says that the bucket is the one of the buckets.
func (r *reader) tree(id uint64, bucket, low, high []byte, top bool) {
	p, flags, count, ok := r.page(id)
	if !ok {
		return
	}
	switch flags {
	case pageLeaf:
		r.leaf(p, count, bucket, low, high, top)
	case pageBranch:
		r.branch(p, count, bucket, low, high, top)
	default:
		r.bad("page %d has flags %#x", id, flags)
	}
}

// span returns n bytes at an offset that an element of a page has relative to itself.
func span(p []byte, element, pos, n uint64) ([]byte, bool) {
	if at := element + pos; at <= uint64(len(p)) && n <= uint64(len(p))-at {
		return p[at : at+n], true
	}
	return nil, false
}

func (r *reader) branch(p []byte, count int, bucket, low, high []byte, top bool) {
	type child struct {
		key []byte
		id  uint64
	}
	var children []child
	for i := range count {
		at := uint64(pageHeader + i*pageElement)
		e, ok := span(p, at, 0, pageElement)
		if !ok {
			r.bad("branch page has %d elements", count)
			return
		}
		key, ok := span(p, at, uint64(native.Uint32(e)), uint64(native.Uint32(e[4:])))
		if !ok || !r.ordered(key, low, high) {
			r.bad("branch page has a wrong key")
			continue // what is below it is in no page that could be trusted
		}
		if n := len(children); n > 0 {
			low = children[n-1].key
		}
		children = append(children, child{key, native.Uint64(e[8:])})
	}
	for i, c := range children {
		end := high
		if i+1 < len(children) {
			end = children[i+1].key
		}
		r.tree(c.id, bucket, c.key, end, top)
	}
}

// ordered says whether a key is from low on and below high.
func (r *reader) ordered(key, low, high []byte) bool {
	return (low == nil || string(key) >= string(low)) && (high == nil || string(key) < string(high))
}

func (r *reader) leaf(p []byte, count int, bucket, low, high []byte, top bool) {
	var last []byte
	for i := range count {
		at := uint64(pageHeader + i*pageElement)
		e, ok := span(p, at, 0, pageElement)
		if !ok {
			r.bad("leaf page has %d elements", count)
			return
		}
		klen := uint64(native.Uint32(e[8:]))
		key, kok := span(p, at, uint64(native.Uint32(e[4:])), klen)
		value, vok := span(p, at, uint64(native.Uint32(e[4:]))+klen, uint64(native.Uint32(e[12:])))
		nested := native.Uint32(e) == bucketLeaf
		if !kok || !vok || nested != top || native.Uint32(e)&^bucketLeaf != 0 {
			r.bad("leaf page has a wrong element in %q", bucket)
			continue
		}
		if !r.ordered(key, low, high) || last != nil && string(key) <= string(last) {
			r.bad("keys of %q are not in order", bucket)
		}
		last = key
		if !top {
			r.record(bucket, key, value)
			continue
		}
		switch {
		case len(value) < bucketHeader:
			r.bad("bucket %q has no root", key)
		case native.Uint64(value) != 0:
			r.tree(native.Uint64(value), key, nil, nil, false)
		case len(value) < bucketHeader+pageHeader || native.Uint16(value[bucketHeader+8:]) != pageLeaf:
			r.bad("bucket %q has no page", key)
		default: // a small bucket is in the value itself
			in := value[bucketHeader:]
			r.leaf(in, int(native.Uint16(in[10:])), key, nil, nil, false)
		}
	}
}

// freelist looks whether pages that are said to be free are.
func (r *reader) freelist(id uint64) {
	if id == noFreelist {
		return
	}
	p, flags, count, ok := r.page(id)
	if !ok {
		return
	}
	n, ids := uint64(count), p[pageHeader:]
	if count == 0xFFFF {
		n, ids = native.Uint64(ids), ids[8:]
	}
	if flags != pageFreelist || n > uint64(len(ids))/8 {
		r.bad("the list of free pages is none")
		return
	}
	seen := map[uint64]bool{}
	for i := range n {
		free := native.Uint64(ids[8*i:])
		if free < 2 || free >= r.high || r.visited[free] || seen[free] {
			r.bad("page %d is not free", free)
			return
		}
		seen[free] = true
	}
}
