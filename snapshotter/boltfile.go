package snapshotter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// The file of bbolt is pages; the first two describe the rest. bbolt maps it and follows what it
// says: a damaged file makes it read memory that is not there, or go round in circles, and neither
// can be survived. So the file is read here first, as bytes. All numbers are in native order.
//
//	page     number uint64, flags uint16, count uint16, overflow uint32; elements; keys and values
//	branch   position uint32, key uint32, page uint64
//	leaf     flags uint32, position uint32, key uint32, value uint32
//	bucket   a value: page uint64, sequence uint64; a page of its own follows if the number is 0
//	meta     magic, version, page size, flags uint32; bucket; freelist, pages, transaction, checksum uint64
//
// https://github.com/etcd-io/bbolt/blob/v1.5.0/internal/common/page.go
const (
	boltHeader  = 16 // bytes, of a page and of a bucket
	boltElement = 16
	boltMeta    = 64
	boltMagic   = 0xED0CDAED
	flagBranch  = 0x01
	flagLeaf    = 0x02
	flagFree    = 0x10
	flagBucket  = 0x01      // of a leaf's element
	noFreelist  = 1<<64 - 1 // the freelist is not kept
	maxPageSize = 64 << 10  // 64 KiB
)

var native = binary.NativeEndian

// A boltFile is a file that is being checked.
type boltFile struct {
	p               []byte
	pageSize, pages uint64
	seen            []bool // pages that are used or free
}

// checkBolt says how a file of bbolt is damaged: every page is used or free, once, and what is in
// the pages that are used is in order. An empty file is a new one.
func checkBolt(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	meta := latestMeta(p)
	if meta == nil {
		return errors.New("no page describes the file")
	}
	f := &boltFile{p: p, pageSize: uint64(native.Uint32(meta[8:])), pages: native.Uint64(meta[40:])}
	if f.pages < 2 || f.pages > uint64(len(p))/f.pageSize {
		return fmt.Errorf("the file is shorter than its %d pages", f.pages)
	}
	f.seen = make([]bool, f.pages)
	f.seen[0], f.seen[1] = true, true
	if err := f.tree(native.Uint64(meta[16:])); err != nil {
		return err
	}
	free := native.Uint64(meta[32:])
	if free == noFreelist {
		return nil
	}
	if err := f.free(free); err != nil {
		return err
	}
	for id, seen := range f.seen {
		if !seen {
			return fmt.Errorf("page %d is neither used nor free", id)
		}
	}
	return nil
}

// latestMeta returns the valid description of the later transaction, or nil.
func latestMeta(p []byte) (latest []byte) {
	for size := 0; size <= maxPageSize; size = max(512, 2*size) { // the first, and where the second can be
		if size+boltHeader+boltMeta > len(p) {
			break
		}
		m := p[size+boltHeader:][:boltMeta]
		sum := fnv.New64a()
		sum.Write(m[:56])
		pageSize := int(native.Uint32(m[8:]))
		if native.Uint32(m) != boltMagic || native.Uint64(m[56:]) != sum.Sum64() || pageSize < 512 || size != 0 && size != pageSize {
			continue
		}
		if latest == nil || native.Uint64(m[48:]) > native.Uint64(latest[48:]) {
			latest = m
		}
	}
	return latest
}

// page returns a page with its overflow, which nobody else may have.
func (f *boltFile) page(id uint64) ([]byte, error) {
	if id >= f.pages || f.seen[id] {
		return nil, fmt.Errorf("page %d of %d is used twice, or is not there", id, f.pages)
	}
	p := f.p[id*f.pageSize:]
	overflow := uint64(native.Uint32(p[12:]))
	if native.Uint64(p) != id || overflow >= f.pages-id {
		return nil, fmt.Errorf("page %d says that it is %d and goes on for %d pages", id, native.Uint64(p), overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if f.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		f.seen[i] = true
	}
	return p[:(overflow+1)*f.pageSize], nil
}

// tree checks a page and those below it.
func (f *boltFile) tree(id uint64) error {
	p, err := f.page(id)
	if err != nil {
		return err
	}
	switch native.Uint16(p[8:]) {
	case flagBranch:
		err = f.branch(p)
	case flagLeaf:
		err = f.leaf(p)
	default:
		err = fmt.Errorf("flags %#x", native.Uint16(p[8:]))
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements calls do with each element of a page and its key and value, whose sizes sizes returns.
// Keys are in order.
func elements(p []byte, sizes func(e []byte) (position, key, value uint32), do func(e, value []byte) error) error {
	var last []byte
	for i := range uint64(native.Uint16(p[10:])) {
		at := boltHeader + i*boltElement
		if at+boltElement > uint64(len(p)) {
			return fmt.Errorf("element %d is not in the page", i)
		}
		e := p[at:][:boltElement]
		position, key, value := sizes(e)
		from := at + uint64(position)
		to := from + uint64(key) + uint64(value)
		if to > uint64(len(p)) {
			return fmt.Errorf("element %d ends at %d of %d", i, to, len(p))
		}
		k := p[from:][:key]
		if i > 0 && bytes.Compare(last, k) >= 0 {
			return fmt.Errorf("keys %q and %q are not in order", last, k)
		}
		last = k
		if err := do(e, p[from+uint64(key):to]); err != nil {
			return err
		}
	}
	return nil
}

func (f *boltFile) branch(p []byte) error {
	if native.Uint16(p[10:]) == 0 {
		return errors.New("nothing below a branch")
	}
	return elements(p, func(e []byte) (uint32, uint32, uint32) { return native.Uint32(e), native.Uint32(e[4:]), 0 },
		func(e, _ []byte) error { return f.tree(native.Uint64(e[8:])) })
}

func (f *boltFile) leaf(p []byte) error {
	return elements(p, leafSizes, func(e, value []byte) error {
		switch flags := native.Uint32(e); {
		case flags == 0:
			return nil
		case flags != flagBucket || len(value) < boltHeader:
			return fmt.Errorf("element with flags %#x and %d bytes", flags, len(value))
		}
		if id := native.Uint64(value); id != 0 {
			return f.tree(id)
		}
		return inline(value[boltHeader:])
	})
}

func leafSizes(e []byte) (position, key, value uint32) {
	return native.Uint32(e[4:]), native.Uint32(e[8:]), native.Uint32(e[12:])
}

// inline checks the page of a small bucket, which has no buckets.
func inline(p []byte) error {
	if len(p) < boltHeader || native.Uint16(p[8:]) != flagLeaf {
		return errors.New("small bucket without a leaf")
	}
	return elements(p, leafSizes, func(e, _ []byte) error {
		if flags := native.Uint32(e); flags != 0 {
			return fmt.Errorf("element of a small bucket with flags %#x", flags)
		}
		return nil
	})
}

// free checks the list of free pages.
func (f *boltFile) free(id uint64) error {
	p, err := f.page(id)
	if err != nil {
		return fmt.Errorf("freelist: %w", err)
	}
	if flags := native.Uint16(p[8:]); flags != flagFree {
		return fmt.Errorf("freelist: flags %#x", flags)
	}
	list, count := p[boltHeader:], uint64(native.Uint16(p[10:]))
	if count == 1<<16-1 { // the number itself did not fit
		list, count = list[8:], native.Uint64(list)
	}
	if count > uint64(len(list))/8 {
		return fmt.Errorf("freelist: %d pages in %d bytes", count, len(list))
	}
	for i := range count {
		free := native.Uint64(list[i*8:])
		if free >= f.pages || f.seen[free] {
			return fmt.Errorf("page %d of %d is free and used, free twice, or is not there", free, f.pages)
		}
		f.seen[free] = true
	}
	return nil
}
