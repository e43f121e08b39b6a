package staging

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"golang.org/x/sys/unix"
)

// ChunkSize is the unit of fetching, of resuming and of buffers, in bytes. Measured on
// loopback: 8 connections with 4 MiB each reach the same rate as with 8 MiB, at half the
// memory.
const ChunkSize = filetable.MaxChunk

// checkpointChunks is how many written chunks wait for a checkpoint.
const checkpointChunks = 64 // 256 MiB

// fileMode is the mode of every staged file: it becomes an object by a rename.
const fileMode = 0o644

// The marks of a chunk. absent → written → synced; a mark never goes back but by a reboot,
// which turns written into absent: those bytes may never have reached the disk.
const (
	markAbsent  = 0
	markWritten = 1
	markSynced  = 2
)

// A Partial is the unfinished part of one blob on disk, below partial/sha256-<hex>:
//
//	head    what is staged, and the boot in which marks were made (JSON)
//	marks   one byte a chunk
//	single  instead of both, when the one chunk of a blob was written: the head
//	data    the bytes of a raw blob or of a compressed archive, sparse
//	member-<offset>, gaps
//	        the bytes of a plain tar, in pieces; of a fragment only what no file has
type Partial struct {
	area   *Area
	name   string
	root   *os.Root
	Dir    string // below the root
	Size   int64  // bytes
	Pieces []Piece
	grid   []int64 // where chunks begin; nil if they all have ChunkSize
	head   partialHead
	dir    *os.Root // Dir, whatever is there by now; nil unless single

	// Resumed says that some chunks were there already.
	Resumed bool

	mu      sync.Mutex // guards what follows
	marks   *os.File   // nil if single
	state   []byte     // the marks
	have    int64      // bytes of chunks that are there
	dirty   []int      // chunks written since the last checkpoint
	syncing bool       // a checkpoint runs
	closed  bool       // Close was called: who comes last closes marks
	failed  error      // of the last checkpoint; who writes next gets it
	lost    error      // of an fsync that failed: what was written since may be gone, whatever reads say
}

// partialHead is the content of a head file.
type partialHead struct {
	Size   int64  `json:"size"`
	Chunk  int64  `json:"chunk"`
	Layout string `json:"layout"` // digest over the pieces
	Boot   string `json:"boot"`   // kernel.random.boot_id
}

// Path returns where a staged file is, below the root of the store.
func (p *Partial) Path(file string) string {
	if strings.Contains(file, "/") {
		return filepath.Join(Top, file)
	}
	return filepath.Join(p.Dir, file)
}

// single says that there is one chunk: it is there or not, and needs no marks.
func (p *Partial) single() bool { return p.Chunks() == 1 }

// headPath returns where the head is. What an earlier version left of a single chunk has none there.
func (p *Partial) headPath() string {
	if p.single() {
		return filepath.Join(p.Dir, "single")
	}
	return filepath.Join(p.Dir, "head")
}

func (p *Partial) readHead() (h partialHead, err error) {
	b, err := p.root.ReadFile(p.headPath())
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(b, &h)
}

func (p *Partial) writeHead() error {
	b, err := json.Marshal(p.head)
	if err != nil {
		return err
	}
	if p.single() { // half of it says nothing
		return p.dir.WriteFile(filepath.Base(p.headPath()), b, 0o600)
	}
	tmp := p.headPath() + ".tmp"
	if err := p.root.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return p.root.Rename(tmp, p.headPath())
}

// openSingle is openMarks for a single chunk.
func (p *Partial) openSingle(there bool) (err error) {
	if p.state = []byte{markAbsent}; there {
		p.state[0], p.have, p.Resumed = markWritten, p.Size, true
	}
	p.dir, err = p.root.OpenRoot(p.Dir)
	return err
}

// openMarks opens the marks, of which some may be of an earlier process, and of an earlier boot.
func (p *Partial) openMarks(same, sameBoot bool) (err error) {
	p.marks, err = p.root.OpenFile(filepath.Join(p.Dir, "marks"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = p.readMarks(same && sameBoot)
	if err == nil && !(same && sameBoot) {
		err = p.writeHead()
	}
	if err != nil {
		return errors.Join(err, p.marks.Close())
	}
	return nil
}

// readMarks loads the marks. After a reboot only synced chunks count.
func (p *Partial) readMarks(sameBoot bool) error {
	p.state = make([]byte, p.Chunks())
	if _, err := p.marks.ReadAt(p.state, 0); err != nil && err != io.EOF {
		return err
	}
	for i, m := range p.state {
		if m != markSynced && (m != markWritten || !sameBoot) {
			p.state[i] = markAbsent
		}
		if p.state[i] != markAbsent {
			_, n := p.Chunk(i)
			p.have, p.Resumed = p.have+n, true
		}
	}
	if err := p.marks.Truncate(int64(len(p.state))); err != nil {
		return err
	}
	_, err := p.marks.WriteAt(p.state, 0)
	return err
}

// Chunks returns how many chunks there are. It relies on maxModel: the sum does not overflow.
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

// Has says whether chunk i is there.
func (p *Partial) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[i] != markAbsent
}

// Present returns how many bytes are there.
func (p *Partial) Present() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have
}

// Each calls fn for every staged file that holds a part of the n bytes at off.
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

// Write stages chunk i and marks it written. It starts the write to the disk, so that the
// last fsync finds little to do.
func (p *Partial) Write(i int, b []byte) error {
	off, n := p.Chunk(i)
	err := p.Each(off, n, func(pc Piece, at, from, to int64) error {
		f, err := p.root.OpenFile(p.Path(pc.File), os.O_CREATE|os.O_WRONLY, fileMode)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b[from:to], at)
		if err == nil && to-from >= ChunkSize/4 {
			// Advice only: an error shows up in the fsync.
			_ = unix.SyncFileRange(int(f.Fd()), at, to-from, unix.SYNC_FILE_RANGE_WRITE)
		}
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	return p.Mark(i)
}

// Mark says that chunk i was written. From time to time that begins a checkpoint, which nobody waits for.
func (p *Partial) Mark(i int) error {
	var err error
	if p.single() {
		err = p.writeHead()
	} else {
		_, err = p.marks.WriteAt([]byte{markWritten}, int64(i))
	}
	if err != nil {
		return err
	}
	due, err := p.note(i)
	if due != nil {
		p.area.work.Go(func() { p.checked(p.checkpoint(due)) })
	}
	return err
}

// note takes note of a chunk that was written, and returns the chunks of a checkpoint if it is time for one.
func (p *Partial) note(i int) (due []int, err error) {
	_, n := p.Chunk(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(p.lost, p.failed); err != nil {
		p.failed = nil
		return nil, err
	}
	if p.state[i] == markAbsent {
		p.have += n
	}
	p.state[i] = markWritten
	p.dirty = append(p.dirty, i)
	if len(p.dirty) >= checkpointChunks && !p.syncing && !p.single() {
		due, p.dirty, p.syncing = p.dirty, nil, true
	}
	return due, nil
}

// checkpoint makes chunks that were written durable, and only then marks them so.
func (p *Partial) checkpoint(dirty []int) error {
	if err := p.syncChunks(dirty); err != nil {
		return err
	}
	for _, i := range dirty {
		if _, err := p.marks.WriteAt([]byte{markSynced}, int64(i)); err != nil {
			return err
		}
	}
	return unix.Fdatasync(int(p.marks.Fd()))
}

// checked ends a checkpoint.
func (p *Partial) checked(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncing, p.failed = false, err
	if p.closed {
		_ = p.marks.Close() // what it says is on the disk, or was only written, as before a checkpoint
	}
}

func (p *Partial) syncChunks(chunks []int) error {
	files := map[string]bool{}
	for _, i := range chunks {
		off, n := p.Chunk(i)
		if err := p.Each(off, n, func(pc Piece, _, _, _ int64) error {
			files[pc.File] = true
			return nil
		}); err != nil {
			return err
		}
	}
	for name := range files {
		if err := p.Sync(name); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes one staged file durable. If that fails, all that is staged is forgotten, and the Partial
// can not be used any more.
func (p *Partial) Sync(name string) error {
	if err := p.Lost(); err != nil {
		return err
	}
	f, err := p.root.OpenFile(p.Path(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		err = fmt.Errorf("what was fetched did not reach the disk and is fetched anew: %w", err)
		p.mu.Lock()
		p.lost = err
		p.have = 0
		clear(p.state) // all absent
		p.mu.Unlock()
		return errors.Join(err, p.Remove())
	}
	return nil
}

// Lost returns why what is staged can not be believed, or nil.
func (p *Partial) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// ReadAt reads staged bytes. Bytes that were not staged read as zero or as io.EOF.
func (p *Partial) ReadAt(b []byte, off int64) (int, error) {
	if off >= p.Size {
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.Size-off)
	err := p.Each(off, n, func(pc Piece, at, from, to int64) error {
		f, err := p.root.Open(p.Path(pc.File))
		if err != nil {
			return err
		}
		_, err = io.ReadFull(io.NewSectionReader(f, at, to-from), b[from:to])
		return errors.Join(err, f.Close())
	})
	if err == nil && n < int64(len(b)) {
		err = io.EOF
	}
	return int(n), err
}

// Create makes a staged file of the given name that is no piece.
func (p *Partial) Create(name string) (*os.File, error) {
	return p.root.OpenFile(filepath.Join(p.Dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
}

// Close ends the work on it. What was staged stays.
func (p *Partial) Close() error {
	p.area.Drop(p.name)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.single() {
		return p.dir.Close()
	}
	if p.syncing {
		return nil
	}
	return p.marks.Close()
}

// Remove forgets all of it.
func (p *Partial) Remove() error { return p.area.Remove(p.name) }
