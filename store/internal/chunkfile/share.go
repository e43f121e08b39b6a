package chunkfile

import (
	"errors"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"golang.org/x/sys/unix"
)

// Files can share whole blocks if the file system supports it. block is the block size of most file
// systems, and minShared the smallest size worth a call, in bytes.
const (
	block     = 4 << 10
	minShared = 64 << 10
)

// put stages group g, whose bytes are buf: zeros as a hole, and chunks found in an object by
// sharing as many blocks with it as possible.
func (f *File) put(st *stage, g int, buf []byte, found []filetable.Location) error {
	if isZero(f.Layout.of(g)) && !st.p.Has(g) { // otherwise the file has wrong bytes there
		return st.p.Mark(g)
	}
	base, _ := st.p.Chunk(g)
	next := base // the first byte that is not staged
	for i, c := range f.Layout.of(g) {
		if found[i].Object == "" || f.set.noShare.Load() {
			continue
		}
		from, to := sharable(c, found[i].Off)
		if to-from < minShared || !f.share(st, found[i], c, from, to) {
			continue
		}
		if _, err := st.data.WriteAt(buf[next-base:from-base], next); err != nil {
			return err
		}
		next = to
	}
	if _, err := st.data.WriteAt(buf[next-base:], next); err != nil {
		return err
	}
	staging.StartWriteback(st.data, base, int64(len(buf)))
	return st.p.Mark(g)
}

// sharable returns the range of the file in which whole blocks of chunk c are also whole blocks of
// an object, which has the chunk at off.
func sharable(c filetable.Chunk, off int64) (from, to int64) {
	if (off-c.Offset)%block != 0 {
		return 0, 0
	}
	from = (c.Offset + block - 1) / block * block
	return from, (c.Offset + c.Size) / block * block
}

// share makes a range of the file share the blocks of an object, and reports whether that worked.
func (f *File) share(st *stage, at filetable.Location, c filetable.Chunk, from, to int64) bool {
	object, err := f.set.Finder.Open(at.Object)
	if err != nil {
		return false // collected since its bytes were read
	}
	defer object.Close()
	err = unix.IoctlFileCloneRange(int(st.data.Fd()), &unix.FileCloneRange{
		Src_fd: int64(object.Fd()), Src_offset: uint64(at.Off + from - c.Offset), Src_length: uint64(to - from), Dest_offset: uint64(from),
	})
	for _, never := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV} {
		if errors.Is(err, never) {
			f.set.noShare.Store(true)
		}
	}
	return err == nil
}
