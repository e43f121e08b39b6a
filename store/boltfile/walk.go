package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"slices"

	"github.com/containerd/errdefs"
)

const (
	headerLen  = 16 // bytes, of a page and of a bucket
	elementLen = 16
	metaLen    = 64

	metaMagic   = 0xED0CDAED
	metaVersion = 2

	flagBranch   = 0x01 // of a page
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf's element

	noFreelist = 1<<64 - 1 // the freelist is not stored
	longList   = 1<<16 - 1 // the count does not fit into the header

	minPageSize = 512
	maxPageSize = 64 << 10
	maxPage     = 1 << 30 // bytes of a page with its overflow; typical pages have a few KiB, a large table some MiB

	maxProblems = 10 // the number of problems that are reported
)

var native = binary.NativeEndian

// Walk reads every page in use of the newest state of a file of size bytes. It calls record, if not
// nil, for each value of a bucket, and with a nil value for each nested bucket. path is the names
// of the parent buckets. The bytes are valid until record returns.
//
// Walk returns errdefs.ErrDataLoss with a description unless every page is either used or free,
// exactly once, and the content of the used pages is valid. It skips damaged parts, so that the
// caller can save the rest. An empty file is a new database. Other errors are read errors.
func Walk(f io.ReaderAt, size int64, record func(path [][]byte, key, value []byte)) error {
	if size == 0 {
		return nil
	}
	if record == nil {
		record = func([][]byte, []byte, []byte) {}
	}
	w := &walker{f: f, record: record}
	root, free, err := w.meta()
	if err != nil {
		return err
	}
	if there := uint64(size) / w.pageSize; w.pages < 2 || w.pages > there {
		w.bad("file is shorter than its %d pages", w.pages)
		w.pages = max(2, there)
	}
	w.seen = make([]bool, w.pages)
	w.seen[0], w.seen[1] = true, true
	w.tree(root, nil, nil, nil)
	if free != noFreelist {
		w.freelist(free)
		if unused := slices.Index(w.seen, false); unused >= 0 && len(w.problems) == 0 {
			w.bad("page %d is neither used nor free", unused)
		}
	}
	return errors.Join(w.problems...)
}

// A walker is the state of one Walk.
type walker struct {
	f               io.ReaderAt
	pageSize, pages uint64
	seen            []bool   // pages that are used or free
	spare           [][]byte // buffers of pages, see release
	problems        []error
	record          func(path [][]byte, key, value []byte)
}

func (w *walker) bad(format string, a ...any) {
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, fmt.Errorf(format+": %w", append(a, errdefs.ErrDataLoss)...))
	}
}

// meta finds the valid meta page of the latest transaction. It returns the pages of the root bucket
// and of the freelist.
func (w *walker) meta() (root, free uint64, err error) {
	var latest []byte
	for at := int64(0); at <= maxPageSize; at = max(minPageSize, 2*at) { // the first meta page, and the possible positions of the second
		p := make([]byte, headerLen+metaLen)
		if _, err := w.f.ReadAt(p, at); err == io.EOF {
			break
		} else if err != nil {
			return 0, 0, err
		}
		m := p[headerLen:]
		sum := fnv.New64a()
		sum.Write(m[:metaLen-8])
		pageSize := int64(native.Uint32(m[8:]))
		switch {
		case native.Uint32(m) != metaMagic || native.Uint32(m[4:]) != metaVersion || native.Uint64(m[metaLen-8:]) != sum.Sum64():
		case pageSize < minPageSize || pageSize > maxPageSize || at != 0 && at != pageSize:
		case latest == nil || native.Uint64(m[48:]) > native.Uint64(latest[48:]):
			latest = m
		}
	}
	if latest == nil {
		return 0, 0, fmt.Errorf("no valid meta page: %w", errdefs.ErrDataLoss)
	}
	w.pageSize, w.pages = uint64(native.Uint32(latest[8:])), native.Uint64(latest[40:])
	return native.Uint64(latest[16:]), native.Uint64(latest[32:]), nil
}

// page returns a page with its overflow and marks them as used; nil if the page is invalid. The caller
// must release it.
func (w *walker) page(id uint64) []byte {
	if id >= w.pages {
		w.bad("page %d does not exist, the file has %d", id, w.pages)
		return nil
	}
	p := w.buffer()
	if _, err := w.f.ReadAt(p, int64(id*w.pageSize)); err != nil {
		w.bad("page %d: %v", id, err)
		return nil
	}
	n := uint64(native.Uint32(p[12:])) + 1
	if native.Uint64(p) != id || n > w.pages-id || n*w.pageSize > maxPage {
		w.bad("header of page %d has number %d and %d pages", id, native.Uint64(p), n)
		return nil
	}
	if slices.Contains(w.seen[id:id+n], true) {
		w.bad("page %d, or one of its %d overflow pages, is used twice", id, n-1)
		return nil
	}
	for i := range n {
		w.seen[id+i] = true
	}
	p = slices.Grow(p, int((n-1)*w.pageSize))[:n*w.pageSize]
	if _, err := w.f.ReadAt(p[w.pageSize:], int64((id+1)*w.pageSize)); err != nil && n > 1 {
		w.bad("page %d: %v", id, err)
		return nil
	}
	return p
}

// buffer returns a buffer of one page.
func (w *walker) buffer() []byte {
	n := len(w.spare)
	if n == 0 {
		return make([]byte, w.pageSize)
	}
	p := w.spare[n-1]
	w.spare = w.spare[:n-1]
	return p[:w.pageSize]
}

// release allows the buffer of a page to be used again.
func (w *walker) release(p []byte) { w.spare = append(w.spare, p) }

// tree walks the pages of a bucket, starting at page id. Its keys are at least low and below high,
// unless those are nil.
func (w *walker) tree(id uint64, path [][]byte, low, high []byte) {
	p := w.page(id)
	if p == nil {
		return
	}
	defer w.release(p)
	switch flags := native.Uint16(p[8:]); flags {
	case flagLeaf:
		w.leaf(p, path, low, high, false)
	case flagBranch:
		w.branch(p, path, low, high)
	default:
		w.bad("page %d has flags %#x", id, flags)
	}
}

// An element is one element of a page.
type element struct {
	ordered bool   // its key is in order
	flags   uint32 // of a leaf
	page    uint64 // of a branch
	key     []byte
	value   []byte // of a leaf
}

// elements returns the elements of a page.
func (w *walker) elements(p, low, high []byte) iter.Seq[element] {
	branch := native.Uint16(p[8:]) == flagBranch
	return func(yield func(element) bool) {
		var last []byte
		for i := range uint64(native.Uint16(p[10:])) {
			at := headerLen + i*elementLen
			if at+elementLen > uint64(len(p)) {
				w.bad("element %d is beyond the end of its page", i)
				return
			}
			head := p[at:][:elementLen]
			var e element
			var position, key, value uint32
			if branch {
				position, key, e.page = native.Uint32(head), native.Uint32(head[4:]), native.Uint64(head[8:])
			} else {
				e.flags, position, key, value = native.Uint32(head), native.Uint32(head[4:]), native.Uint32(head[8:]), native.Uint32(head[12:])
			}
			from := at + uint64(position)
			to := from + uint64(key) + uint64(value)
			if to > uint64(len(p)) {
				w.bad("element %d ends at %d of %d", i, to, len(p))
				continue
			}
			e.key, e.value = p[from:][:key], p[from+uint64(key):to]
			e.ordered = string(e.key) >= string(low) && (high == nil || string(e.key) < string(high)) && (last == nil || string(e.key) > string(last))
			if e.ordered {
				last = e.key
			} else {
				w.bad("key %q is not in order", e.key)
			}
			if !yield(e) {
				return
			}
		}
	}
}

func (w *walker) branch(p []byte, path [][]byte, low, high []byte) {
	// A branch with a key out of order points to a page that cannot be trusted.
	children := slices.DeleteFunc(slices.Collect(w.elements(p, low, high)), func(e element) bool { return !e.ordered })
	if len(children) == 0 {
		w.bad("branch of %q has no children", path)
	}
	for i, c := range children {
		end := high
		if i+1 < len(children) {
			end = children[i+1].key
		}
		w.tree(c.page, path, c.key, end)
	}
}

// leaf walks the elements of a page; inline reports that the page is stored in a value.
func (w *walker) leaf(p []byte, path [][]byte, low, high []byte, inline bool) {
	for e := range w.elements(p, low, high) {
		switch {
		case e.flags == 0:
			w.record(path, e.key, e.value)
		case e.flags != flagBucket || inline || len(e.value) < headerLen:
			w.bad("element of %q with flags %#x and %d bytes", path, e.flags, len(e.value))
		default:
			w.record(path, e.key, nil)
			w.bucket(append(slices.Clip(path), e.key), e.value)
		}
	}
}

// bucket walks the bucket whose header is value.
func (w *walker) bucket(path [][]byte, value []byte) {
	if id := native.Uint64(value); id != 0 {
		w.tree(id, path, nil, nil)
		return
	}
	p := value[headerLen:]
	if len(p) < headerLen || native.Uint16(p[8:]) != flagLeaf {
		w.bad("inline bucket %q has no leaf", path)
		return
	}
	w.leaf(p, path, nil, nil, true)
}

// freelist checks that the pages of the freelist are free.
func (w *walker) freelist(id uint64) {
	p := w.page(id)
	if p == nil {
		return
	}
	defer w.release(p)
	list, count := p[headerLen:], uint64(native.Uint16(p[10:]))
	if count == longList {
		list, count = list[8:], native.Uint64(list)
	}
	if flags := native.Uint16(p[8:]); flags != flagFreelist || count > uint64(len(list))/8 {
		w.bad("freelist has flags %#x, and %d pages in %d bytes", flags, count, len(list))
		return
	}
	for i := range count {
		free := native.Uint64(list[8*i:])
		if free >= w.pages || w.seen[free] {
			w.bad("page %d of %d is free and used, free twice, or does not exist", free, w.pages)
			return
		}
		w.seen[free] = true
	}
}
