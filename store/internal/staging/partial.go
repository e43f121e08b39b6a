package staging

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"golang.org/x/sys/unix"
)

// ChunkSize is the unit of fetching, resuming and buffering, in bytes. Measured on loopback: 8
// connections with 4 MiB each are as fast as with 8 MiB, and use half the memory.
const ChunkSize = filetable.MaxChunk

// fileMode is the mode of staged files, which become objects by a rename.
const fileMode = 0o644

// A Partial is the incomplete part of a blob on disk, in a directory of the Area:
//
//	marks   one byte for each chunk
//	data    the bytes of a raw blob or of a compressed archive, sparse
//	member-<offset>, gaps
//	        the bytes of an uncompressed tar, in pieces; of fragments only bytes in no file
//
// An extended attribute of the directory has the head: the layout, and the boot in which marks were made. If it
// cannot be set, the blob is fetched again after a restart. A blob of one chunk has no marks: it has a head when
// the chunk is written. A file of one chunk is staged without a directory, at its path and with its attribute:
// a model can have thousands of them, and each inode costs more than their bytes.
type Partial struct {
	area   *Area
	name   string
	root   *dirs.Root
	Dir    string // below the root
	Size   int64  // bytes
	Pieces []Piece
	grid   []int64 // offsets of chunks; nil if all have ChunkSize
	head   partialHead
	dir    *os.File     // opened at Dir, even if that is replaced; the data, if that is the only file
	end    func() error // of dir

	// Resumed is true if some chunks were present when it was opened.
	Resumed bool

	mu      sync.Mutex // guards the following
	gaps    *os.File   // the file of this name, if it was used
	marks   *os.File   // nil if single
	state   []byte     // the marks
	have    int64      // bytes of present chunks
	dirty   []int      // chunks written since the last checkpoint
	syncing bool       // a checkpoint is running
	closed  bool       // Close was called: the checkpoint closes marks
	failed  error      // error of the last checkpoint, for the next write
	lost    error      // error of a failed fsync: written bytes may be lost, even if they can be read
}

// partialHead is the value of the attribute, as JSON.
type partialHead struct {
	Size   int64  `json:"size"`
	Chunk  int64  `json:"chunk"`
	Layout string `json:"layout"`         // digest over the pieces
	Boot   string `json:"boot"`           // kernel.random.boot_id
	File   string `json:"file,omitempty"` // without which the rest is of no use; empty if the bytes are in several files, or elsewhere
}

// onlyFile returns the file in the directory of a partial that has all pieces, or nothing.
func onlyFile(pieces []Piece) string {
	if len(pieces) != 1 || strings.Contains(pieces[0].File, "/") {
		return ""
	}
	return pieces[0].File
}

// Path returns the path of a staged file, below the root of the store.
func (p *Partial) Path(file string) string {
	switch {
	case strings.Contains(file, "/"):
		return filepath.Join(Top, file)
	case isFile(p.grid):
		return p.Dir
	default:
		return filepath.Join(p.Dir, file)
	}
}

// isFile reports whether a partial is staged as a file without a directory. Archives have no grid.
func isFile(grid []int64) bool { return len(grid) == 1 }

// DataPath returns the path of the file staged under a name, below the root of the store.
func DataPath(name string, grid []int64) string {
	p := Partial{Dir: filepath.Join(Top, name), grid: grid}
	return p.Path("data")
}

// single reports whether there is only one chunk, which needs no marks.
func (p *Partial) single() bool { return p.Chunks() == 1 }

// xattrHead is the extended attribute with the head.
const xattrHead = "trusted.ballast.staged"

func (p *Partial) readHead() (h partialHead, err error) {
	dir, err := p.root.Open(p.Dir)
	if err != nil {
		return h, err
	}
	defer dir.Close()
	b := make([]byte, 1<<10)
	n, err := unix.Fgetxattr(int(dir.Fd()), xattrHead, b)
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(b[:n], &h)
}

func (p *Partial) writeHead() error {
	b, err := json.Marshal(p.head)
	if err == nil {
		_ = unix.Fsetxattr(int(p.dir.Fd()), xattrHead, b, 0) // a disk error recurs in the fsync
	}
	return err
}

// open opens or creates the staged files, which may be there.
func (p *Partial) open(there bool) error {
	p.head = partialHead{Size: p.Size, Chunk: ChunkSize, Layout: LayoutOf(p.Pieces, p.grid), Boot: p.area.boot, File: onlyFile(p.Pieces)}
	have, err := partialHead{}, fs.ErrNotExist
	if there {
		have, err = p.readHead()
	}
	sameBoot := have.Boot == p.area.boot
	have.Boot = p.area.boot
	same := err == nil && have == p.head && (sameBoot || !p.single())
	if !same {
		if !p.single() || !errors.Is(err, fs.ErrNotExist) {
			if err := p.root.RemoveAll(p.Dir); err != nil {
				return err
			}
		}
		if !isFile(p.grid) {
			if err := p.root.MkdirAll(p.Dir, 0o700); err != nil {
				return err
			}
		}
	}
	if isFile(p.grid) {
		if p.dir, err = p.root.OpenFile(p.Dir, os.O_CREATE|os.O_RDWR, fileMode); err == nil {
			p.end = p.dir.Close
		}
	} else {
		p.dir, p.end, err = p.root.Keep(p.Dir)
	}
	if err != nil {
		return err
	}
	if !p.single() {
		err = p.openMarks(same, sameBoot)
	} else if p.state = []byte{markAbsent}; same && !p.isCut()(0) {
		p.state[0], p.have, p.Resumed = markWritten, p.Size, true
	}
	if err != nil {
		return errors.Join(err, p.end())
	}
	return nil
}

// Chunks returns the number of chunks. It relies on maxModel, which prevents an overflow.
func (p *Partial) Chunks() int {
	if p.grid != nil {
		return len(p.grid)
	}
	return int((p.Size + ChunkSize - 1) / ChunkSize)
}

// Chunk returns the range of chunk i.
func (p *Partial) Chunk(i int) (off, n int64) {
	if p.grid != nil {
		end := p.Size
		if i+1 < len(p.grid) {
			end = p.grid[i+1]
		}
		return p.grid[i], end - p.grid[i]
	}
	off = int64(i) * ChunkSize
	return off, min(ChunkSize, p.Size-off)
}

// Each calls fn for every staged file with a part of the n bytes at off.
func (p *Partial) Each(off, n int64, fn func(pc Piece, at, from, to int64) error) error {
	i := sort.Search(len(p.Pieces), func(i int) bool { return p.Pieces[i].Off+p.Pieces[i].Size > off })
	for end := off + n; i < len(p.Pieces) && p.Pieces[i].Off < end; i++ {
		pc := p.Pieces[i]
		from, to := max(off, pc.Off), min(end, pc.Off+pc.Size)
		if err := fn(pc, pc.At+from-pc.Off, from-off, to-off); err != nil {
			return err
		}
	}
	return nil
}

// file opens a staged file for reading and writing, until done. The only file of a partial is open, and the gaps, which
// lie between all others, stay open.
func (p *Partial) file(name string, flag int) (f *os.File, done func() error, err error) {
	stays := func() error { return nil }
	switch {
	case isFile(p.grid):
		return p.dir, stays, nil
	case name == gaps:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.gaps == nil {
			p.gaps, err = p.root.OpenFile(p.Path(name), flag|os.O_RDWR, fileMode)
		}
		return p.gaps, stays, err
	}
	f, err = p.root.OpenFile(p.Path(name), flag|os.O_RDWR, fileMode)
	return f, f.Close, err
}

// Write stages chunk i and marks it as written.
func (p *Partial) Write(i int, b []byte) error {
	off, n := p.Chunk(i)
	err := p.Each(off, n, func(pc Piece, at, from, to int64) error {
		f, done, err := p.file(pc.File, os.O_CREATE)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b[from:to], at)
		StartWriteback(f, at, to-from)
		return errors.Join(err, done())
	})
	if err != nil {
		return err
	}
	return p.Mark(i)
}

// StartWriteback starts writing a range to the disk, so that the final fsync has little to do. An error recurs
// in the fsync.
func StartWriteback(f *os.File, off, n int64) {
	if n >= ChunkSize/4 {
		_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// Data opens the staged bytes of a raw blob or a file for reading and writing.
func (p *Partial) Data() (data *os.File, done func() error, err error) {
	return p.file("data", os.O_CREATE)
}

// SyncAll makes all staged files durable by one sync of the file system, which also waits for other writers. It is
// not for a Resumed Partial: the directory was opened before the first byte of this process was written, so that no
// error of these bytes is missed, but an error of earlier bytes may have been reported before, and then only their
// own files have it. Nor is it for a kernel that tells no errors (durable.SyncfsTells). If it fails, all staged bytes
// are dropped, as by Sync.
func (p *Partial) SyncAll() error {
	if err := p.Lost(); err != nil {
		return err
	}
	return p.synced(unix.Syncfs(int(p.dir.Fd())))
}

// Sync makes a staged file durable. If that fails, all staged bytes are dropped, and the Partial
// cannot be used any more.
func (p *Partial) Sync(name string) error {
	if err := p.Lost(); err != nil {
		return err
	}
	f := p.dir
	if !isFile(p.grid) {
		var err error
		if f, err = p.root.OpenFile(p.Path(name), os.O_RDWR, 0); err != nil {
			return err
		}
		defer f.Close()
	}
	return p.synced(f.Sync())
}

// synced drops all staged bytes if err, the result of a sync, is not nil.
func (p *Partial) synced(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the fetched bytes did not reach the disk and are fetched again: %w", err)
	p.mu.Lock()
	p.lost = err
	p.have = 0
	clear(p.state) // all absent
	p.mu.Unlock()
	return errors.Join(err, p.Remove())
}

// Lost returns the error that makes staged bytes invalid, or nil.
func (p *Partial) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// ReadAt reads staged bytes. Bytes that are not staged read as zero or io.EOF.
func (p *Partial) ReadAt(b []byte, off int64) (int, error) {
	if off >= p.Size {
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.Size-off)
	err := p.Each(off, n, func(pc Piece, at, from, to int64) error {
		f, done, err := p.file(pc.File, 0)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(io.NewSectionReader(f, at, to-from), b[from:to])
		return errors.Join(err, done())
	})
	if err == nil && n < int64(len(b)) {
		err = io.EOF
	}
	return int(n), err
}

// Create creates a staged file that is not a piece.
func (p *Partial) Create(name string) (*os.File, error) {
	return p.root.OpenFile(filepath.Join(p.Dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
}

// Close ends the use of the Partial. Staged bytes stay.
func (p *Partial) Close() error {
	p.area.Drop(p.name)
	p.mu.Lock()
	p.closed = true
	syncing := p.syncing
	p.mu.Unlock()
	err := p.end()
	if p.gaps != nil {
		err = errors.Join(err, p.gaps.Close())
	}
	if p.marks != nil && !syncing {
		err = errors.Join(err, p.marks.Close())
	}
	return err
}

// Remove removes all staged bytes.
func (p *Partial) Remove() error { return p.area.Remove(p.name) }
