package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// chunkSize is the unit of fetching, of resuming and of buffers, in bytes. Measured on
// loopback: 8 connections with 4 MiB each reach the same rate as with 8 MiB, at half the
// memory.
const chunkSize = filetable.MaxChunk

// checkpointChunks is how many written chunks wait for a checkpoint.
const checkpointChunks = 64 // 256 MiB

// The marks of a chunk. absent → written → synced; a mark never goes back but by a reboot,
// which turns written into absent: those bytes may never have reached the disk.
const (
	markAbsent  = 0
	markWritten = 1
	markSynced  = 2
)

// A piece says where the bytes [off, off+size) of a blob are staged: in a file, at an offset.
// The file is in the directory of the partial, or, if it has a slash, below all of them.
type piece struct {
	off, size int64
	file      string
	at        int64
}

// path returns where a staged file is, below the root of the store.
func (p *partial) path(file string) string {
	if strings.Contains(file, "/") {
		return filepath.Join(partialDir, file)
	}
	return filepath.Join(p.dir, file)
}

// rawPieces stages a blob as one file.
func rawPieces(size int64) []piece { return []piece{{size: size, file: "data"}} }

// tarPieces stages each member of a plain tar as a file of its own, and what is between
// them (headers and padding) in a sparse file. members may overlap only if they are equal.
func tarPieces(members []filetable.Member, size int64) ([]piece, error) {
	ranges := make([]filetable.Member, 0, len(members))
	for _, m := range members {
		if m.Type == filetable.TypeReg && m.Size > 0 {
			ranges = append(ranges, m)
		}
	}
	sort.Slice(ranges, func(i, j int) bool { return ranges[i].Offset < ranges[j].Offset })
	ranges = slices.CompactFunc(ranges, func(a, b filetable.Member) bool { return a.Offset == b.Offset && a.Size == b.Size })
	var (
		pieces []piece
		at     int64
	)
	gap := func(to int64) {
		if to > at {
			pieces = append(pieces, piece{off: at, size: to - at, file: "gaps", at: at})
		}
	}
	for _, m := range ranges {
		if m.Offset < at || m.Size > size-m.Offset {
			return nil, fmt.Errorf("tar member %q: its range overlaps another or the end: %w", m.Path, errdefs.ErrInvalidArgument)
		}
		gap(m.Offset)
		pieces = append(pieces, piece{off: m.Offset, size: m.Size, file: memberFile(m.Offset)})
		at = m.Offset + m.Size
	}
	gap(size)
	return pieces, nil
}

func memberFile(off int64) string { return fmt.Sprintf("member-%d", off) }

// partial is the unfinished part of one blob on disk, below partial/sha256-<hex>:
//
//	head    what is staged, and the boot in which marks were made (JSON)
//	marks   one byte a chunk
//	data    the bytes of a raw blob or of a compressed archive, sparse
//	member-<offset>, gaps
//	        the bytes of a plain tar, in pieces; of a fragment only what no file has
type partial struct {
	root   *os.Root
	dir    string
	size   int64
	pieces []piece
	grid   []int64 // where chunks begin; nil if they all have chunkSize

	// resumed says that some chunks were there already.
	resumed bool

	syncing sync.Mutex // held during a checkpoint; before mu

	mu    sync.Mutex // guards what follows
	marks *os.File
	state []byte // the marks
	doubt []bool // chunks that count as absent until they are read and are right; nil if there are none
	have  int64  // bytes of chunks that are there
	dirty []int  // chunks written since the last checkpoint
}

// partialHead is the content of a head file.
type partialHead struct {
	Size   int64  `json:"size"`
	Chunk  int64  `json:"chunk"`
	Layout string `json:"layout"` // digest over the pieces
	Boot   string `json:"boot"`   // kernel.random.boot_id
}

func partialName(d digest.Digest) string {
	return filepath.Join(partialDir, strings.ReplaceAll(d.String(), ":", "-"))
}

func layoutOf(pieces []piece, grid []int64) string {
	h := digest.SHA256.Hash()
	for _, at := range grid {
		fmt.Fprintln(h, at)
	}
	for _, p := range pieces {
		fmt.Fprintf(h, "%d %d %s %d\n", p.off, p.size, p.file, p.at)
	}
	return digest.NewDigest(digest.SHA256, h).String()
}

// openPartial opens what there is in dir of a blob, or begins anew.
func (s *Store) openPartial(dir string, size int64, pieces []piece, grid []int64) (*partial, error) {
	defer s.objects.Pause()() // a collection may be looking at what is left of an old fetch
	p := &partial{root: s.root, dir: dir, size: size, pieces: pieces, grid: grid}
	want := partialHead{Size: size, Chunk: chunkSize, Layout: layoutOf(pieces, grid), Boot: s.boot}
	have, err := p.readHead()
	same := err == nil && have.Size == want.Size && have.Chunk == want.Chunk && have.Layout == want.Layout
	if _, err := p.root.Lstat(p.path("data")); grid != nil && err != nil {
		same = false // it became an object in the moment before the end of the process
	}
	if !same {
		if err := s.root.RemoveAll(p.dir); err != nil {
			return nil, err
		}
		if err := s.root.MkdirAll(p.dir, 0o700); err != nil {
			return nil, err
		}
	}
	p.marks, err = s.root.OpenFile(filepath.Join(p.dir, "marks"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := p.readMarks(same && have.Boot == want.Boot); err != nil {
		return nil, errors.Join(err, p.marks.Close())
	}
	if !same || have.Boot != want.Boot {
		if err := p.writeHead(want); err != nil {
			return nil, errors.Join(err, p.marks.Close())
		}
	}
	return p, nil
}

func (p *partial) readHead() (h partialHead, err error) {
	b, err := p.root.ReadFile(filepath.Join(p.dir, "head"))
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(b, &h)
}

func (p *partial) writeHead(h partialHead) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	tmp := filepath.Join(p.dir, "head.tmp")
	if err := p.root.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return p.root.Rename(tmp, filepath.Join(p.dir, "head"))
}

// readMarks loads the marks. After a reboot only synced chunks count.
func (p *partial) readMarks(sameBoot bool) error {
	p.state = make([]byte, p.chunks())
	if _, err := p.marks.ReadAt(p.state, 0); err != nil && err != io.EOF {
		return err
	}
	for i, m := range p.state {
		if m != markSynced && (m != markWritten || !sameBoot) {
			p.state[i] = markAbsent
		}
		if p.state[i] != markAbsent {
			_, n := p.chunk(i)
			p.have, p.resumed = p.have+n, true
		}
	}
	if err := p.marks.Truncate(int64(len(p.state))); err != nil {
		return err
	}
	_, err := p.marks.WriteAt(p.state, 0)
	return err
}

// chunks relies on maxModel: the sum does not overflow.
func (p *partial) chunks() int {
	if p.grid != nil {
		return len(p.grid)
	}
	return int((p.size + chunkSize - 1) / chunkSize)
}

// chunk returns the range of chunk i.
func (p *partial) chunk(i int) (off, n int64) {
	if p.grid != nil {
		end := p.size
		if i+1 < len(p.grid) {
			end = p.grid[i+1]
		}
		return p.grid[i], end - p.grid[i]
	}
	off = int64(i) * chunkSize
	return off, min(chunkSize, p.size-off)
}

func (p *partial) has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[i] != markAbsent && !p.doubtedLocked(i)
}

func (p *partial) doubtedLocked(i int) bool { return p.doubt != nil && p.doubt[i] }

// doubted says whether chunk i was staged, and has to be verified before it counts.
func (p *partial) doubted(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[i] != markAbsent && p.doubtedLocked(i)
}

// setDoubt says whether chunk i has to be verified before it counts.
func (p *partial) setDoubt(i int, doubt bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubt == nil {
		p.doubt = make([]bool, len(p.state))
	}
	p.doubt[i] = doubt
}

// present returns how many bytes are there.
func (p *partial) present() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have
}

// each calls fn for every staged file that holds a part of the n bytes at off.
func (p *partial) each(off, n int64, fn func(pc piece, at, from, to int64) error) error {
	i := sort.Search(len(p.pieces), func(i int) bool { return p.pieces[i].off+p.pieces[i].size > off })
	for end := off + n; i < len(p.pieces) && p.pieces[i].off < end; i++ {
		pc := p.pieces[i]
		from, to := max(off, pc.off), min(end, pc.off+pc.size)
		if err := fn(pc, pc.at+from-pc.off, from-off, to-off); err != nil {
			return err
		}
	}
	return nil
}

// write stages chunk i and marks it written. It starts the write to the disk, so that the
// last fsync finds little to do.
func (p *partial) write(i int, b []byte) error {
	off, n := p.chunk(i)
	err := p.each(off, n, func(pc piece, at, from, to int64) error {
		f, err := p.root.OpenFile(p.path(pc.file), os.O_CREATE|os.O_WRONLY, objectMode)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b[from:to], at)
		if err == nil && to-from >= chunkSize/4 {
			// Advice only: an error shows up in the fsync.
			_ = unix.SyncFileRange(int(f.Fd()), at, to-from, unix.SYNC_FILE_RANGE_WRITE)
		}
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	return p.mark(i)
}

// mark says that chunk i was written.
func (p *partial) mark(i int) error {
	_, n := p.chunk(i)
	p.mu.Lock()
	if p.state[i] == markAbsent {
		p.have += n
	}
	p.state[i] = markWritten
	if p.doubt != nil {
		p.doubt[i] = false
	}
	p.dirty = append(p.dirty, i)
	full := len(p.dirty) >= checkpointChunks
	_, err := p.marks.WriteAt([]byte{markWritten}, int64(i))
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if full && p.syncing.TryLock() {
		defer p.syncing.Unlock()
		return p.checkpoint()
	}
	return nil
}

// checkpoint makes what was written durable, and only then marks it so.
func (p *partial) checkpoint() error {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = nil
	p.mu.Unlock()
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

func (p *partial) syncChunks(chunks []int) error {
	files := map[string]bool{}
	for _, i := range chunks {
		off, n := p.chunk(i)
		if err := p.each(off, n, func(pc piece, _, _, _ int64) error {
			files[pc.file] = true
			return nil
		}); err != nil {
			return err
		}
	}
	for name := range files {
		if err := p.sync(name); err != nil {
			return err
		}
	}
	return nil
}

// sync makes one staged file durable.
func (p *partial) sync(name string) error {
	f, err := p.root.OpenFile(p.path(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ReadAt reads staged bytes. Bytes that were not staged read as zero or as io.EOF.
func (p *partial) ReadAt(b []byte, off int64) (int, error) {
	if off >= p.size {
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.size-off)
	err := p.each(off, n, func(pc piece, at, from, to int64) error {
		f, err := p.root.Open(p.path(pc.file))
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

// create makes a staged file of the given name that is no piece.
func (p *partial) create(name string) (*os.File, error) {
	return p.root.OpenFile(filepath.Join(p.dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, objectMode)
}

func (p *partial) close() error { return p.marks.Close() }

// remove forgets all of it.
func (p *partial) remove() error {
	err := p.root.RemoveAll(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
