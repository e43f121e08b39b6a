package staging

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/opencontainers/go-digest"
)

// Top is the directory of all partials, below the root of the store.
const Top = "partial"

// Keeps reports whether a directory below the root of a store is better kept open, see dirs.Open.
func Keeps(dir string) bool { return dir == Top }

// TempPrefix is the prefix of the names of temporary files that are no partials: who makes them removes them.
const TempPrefix = "bytes-"

// TTL is how long abandoned staged files stay.
const TTL = 24 * time.Hour

// gone is the prefix of the names of directories that are being removed.
const gone = ".gone-"

// An Area is the directory of all partials. Its methods are safe for concurrent use. It knows what is in the
// directory, so that no method but New and Collect reads all of it.
type Area struct {
	root *dirs.Root
	boot string         // kernel.random.boot_id
	work sync.WaitGroup // checkpoints

	mu      sync.Mutex          // guards the following and all entries; files are not touched under it
	entries map[string][]*entry // by blobOf
	unsized map[*entry]bool     // those of unknown size
	sized   int64               // size of all others, in bytes
}

// An entry is a name in the directory that is on the disk or in use.
type entry struct {
	name   string
	there  bool          // it may be on the disk
	held   int           // number of Holds
	busy   chan struct{} // closed when its files were created or removed; nil: nobody does that
	size   int64         // allocated bytes, unless it is in unsized
	change int           // number of uses, each of which may have changed the size
}

// New returns the area below a root.
func New(root *dirs.Root) (*Area, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	if err := root.MkdirAll(Top, 0o700); err != nil {
		return nil, err
	}
	a := &Area{root: root, boot: strings.TrimSpace(string(boot)), entries: map[string][]*entry{}, unsized: map[*entry]bool{}}
	found, err := fs.ReadDir(root.FS(), Top)
	for _, e := range found {
		if !e.IsDir() || !a.isEmptied(e.Name()) || a.remove(e.Name()) != nil {
			a.entry(e.Name()).there = true
		}
	}
	return a, err
}

// isEmptied reports whether the file of a directory has become an object, just before a process ended.
func (a *Area) isEmptied(name string) bool {
	p := &Partial{root: a.root, Dir: filepath.Join(Top, name)}
	head, err := p.readHead()
	if err != nil || head.File == "" {
		return false
	}
	_, err = a.root.Lstat(filepath.Join(p.Dir, head.File))
	return errors.Is(err, fs.ErrNotExist)
}

// Close waits for running checkpoints. There must be no more writes.
func (a *Area) Close() { a.work.Wait() }

// blobOf returns the part of a name that the directories of one blob have in common.
func blobOf(name string) string {
	if i := strings.LastIndexByte(name, '-'); i == digest.SHA256.Size()*2 {
		return name[:i]
	}
	return name
}

// find returns the entry of a name, or nil. The caller holds mu.
func (a *Area) find(name string) *entry {
	for _, e := range a.entries[blobOf(name)] {
		if e.name == name {
			return e
		}
	}
	return nil
}

// entry returns the entry of a name, which is about to change. The caller holds mu.
func (a *Area) entry(name string) *entry {
	e := a.find(name)
	if e == nil {
		e = &entry{name: name}
		a.entries[blobOf(name)] = append(a.entries[blobOf(name)], e)
	}
	if e.change++; !a.unsized[e] {
		a.unsized[e] = true
		a.sized -= e.size
		e.size = 0
	}
	return e
}

// forget forgets an entry that is neither on the disk nor in use. The caller holds mu.
func (a *Area) forget(e *entry) {
	if e.there || e.held > 0 || e.busy != nil {
		return
	}
	blob := blobOf(e.name)
	if a.entries[blob] = slices.DeleteFunc(a.entries[blob], func(o *entry) bool { return o == e }); len(a.entries[blob]) == 0 {
		delete(a.entries, blob)
	}
	a.sized -= e.size
	delete(a.unsized, e)
}

// claim waits until nobody else creates or removes the files of a name, until done reports whether they
// are there. there is false if they are not.
func (a *Area) claim(name string) (there bool, done func(there bool)) {
	for {
		a.mu.Lock()
		e := a.entry(name)
		busy := e.busy
		if busy == nil {
			there, done = e.there, a.begin(e)
		}
		a.mu.Unlock()
		if busy == nil {
			return there, done
		}
		<-busy
	}
}

// claimUnused is claim for a name that is neither held nor claimed; otherwise it returns nil.
func (a *Area) claimUnused(name string) (done func(there bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entry(name); e.held == 0 && e.busy == nil {
		return a.begin(e)
	}
	return nil
}

// begin begins a claim. The caller holds mu.
func (a *Area) begin(e *entry) (done func(there bool)) {
	e.busy = make(chan struct{})
	return func(there bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(e.busy)
		e.busy, e.there = nil, there
		a.forget(e)
	}
}

// BlobDir returns the name of the directory in which a blob is staged with a layout. Staged bytes
// belong to the group of sources that provides them (transfer.GroupKey): other groups must not get
// bytes that they may not have, or that are not verified.
func BlobDir(d digest.Digest, layout, group string) string {
	return d.Encoded() + "-" + digest.FromString(layout + "\n" + group).Encoded()[:32]
}

// Dirs returns the names of the directories in which a blob is staged.
func (a *Area) Dirs(d digest.Digest) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.entries[d.Encoded()] {
		if e.there {
			names = append(names, e.name)
		}
	}
	return names
}

// Hold protects a directory from garbage collection until the same number of Drops.
func (a *Area) Hold(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entry(name).held++
}

// Drop ends a Hold.
func (a *Area) Drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entry(name)
	e.held--
	a.forget(e)
}

// Make makes a directory.
func (a *Area) Make(name string) error {
	_, done := a.claim(name)
	defer done(true)
	return a.root.MkdirAll(filepath.Join(Top, name), 0o700)
}

// Remove removes a directory.
func (a *Area) Remove(name string) error {
	there, done := a.claim(name)
	var err error
	if there {
		err = a.remove(name)
	}
	done(err != nil)
	return err
}

// remove removes a file or a directory, which may be missing.
func (a *Area) remove(name string) error {
	path := filepath.Join(Top, name)
	if err := a.root.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return a.root.RemoveAll(path)
}

// Has reports whether files of a name may be on the disk.
func (a *Area) Has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.find(name)
	return e != nil && (e.there || e.busy != nil)
}

// Tidy is Remove, unless the directory is held.
func (a *Area) Tidy(name string) error {
	if done := a.claimUnused(name); done != nil {
		return a.discard(name, done)
	}
	return nil
}

// discard removes a claimed directory. The claim ends before its files are removed, which can take long.
func (a *Area) discard(name string, done func(there bool)) error {
	trash := filepath.Join(Top, gone+rand.Text())
	err := a.root.Rename(filepath.Join(Top, name), trash)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	done(err != nil)
	return errors.Join(err, a.root.RemoveAll(trash))
}

// Collect removes the directories and files that are not held and were idle for TTL, but no temporary files. It returns
// their number; with dryRun it only counts.
func (a *Area) Collect(dryRun bool) (n int, err error) {
	entries, err := fs.ReadDir(a.root.FS(), Top)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), TempPrefix) { // a hard link is as old as what it was made from
			continue
		}
		left := strings.HasPrefix(e.Name(), gone) // by a crash
		done := a.claimUnused(e.Name())
		switch {
		case done == nil:
			continue
		case !left && a.recent(e.Name()):
			done(true)
			continue
		case !left:
			n++
		}
		if dryRun {
			done(true)
		} else if err := a.discard(e.Name(), done); err != nil {
			return n, err
		}
	}
	return n, nil
}

// recent reports whether a directory or file was written within TTL.
func (a *Area) recent(name string) bool {
	for _, file := range []string{"marks", "data", "."} {
		if info, err := a.root.Lstat(filepath.Join(Top, name, file)); err == nil && time.Since(info.ModTime()) < TTL {
			return true
		}
	}
	return false
}

// Open opens the staged part of a blob in a directory, or starts a new one. The directory is held
// until Close. Chunks begin at the offsets in grid or, if it is nil, every ChunkSize bytes.
func (a *Area) Open(name string, size int64, pieces []Piece, grid []int64) (*Partial, error) {
	a.Hold(name)
	there, done := a.claim(name)
	defer done(true)
	p := &Partial{area: a, name: name, root: a.root, Dir: filepath.Join(Top, name), Size: size, Pieces: pieces, grid: grid}
	if err := p.open(there); err != nil {
		a.Drop(name)
		return nil, err
	}
	return p, nil
}

// Marked returns the number of bytes with valid marks of a partial, without opening it: 0 if there
// is none, or one of another layout. It may be written concurrently. grid, if any, is called if there is one.
func (a *Area) Marked(name string, size int64, grid func() []int64) (n int64) {
	if !a.Has(name) {
		return 0
	}
	p := &Partial{root: a.root, Dir: filepath.Join(Top, name), Size: size}
	if grid != nil {
		p.grid = grid()
	}
	head, err := p.readHead()
	switch {
	case err != nil || head.Size != size || head.Chunk != ChunkSize:
		return 0
	case p.single() && head.Boot == a.boot:
		return size
	case p.single():
		return 0
	}
	marks, err := a.root.ReadFile(filepath.Join(p.Dir, "marks"))
	if err != nil || len(marks) != p.Chunks() {
		return 0
	}
	for i, m := range marks {
		if markIn(m, head.Boot == a.boot) != markAbsent {
			_, size := p.Chunk(i)
			n += size
		}
	}
	return n
}

// Usage returns the disk usage of all directories, in bytes. It reads only those that were used since the
// last call.
func (a *Area) Usage() (total int64, err error) {
	a.mu.Lock()
	changes := map[*entry]int{}
	for e := range a.unsized {
		changes[e] = e.change
	}
	total = a.sized
	a.mu.Unlock()
	for e, change := range changes {
		n, err := a.Allocated(e.name)
		if err != nil {
			return 0, err
		}
		_, err = a.root.Lstat(filepath.Join(Top, e.name))
		total += n
		a.mu.Lock()
		if a.unsized[e] && e.change == change && e.held == 0 && e.busy == nil { // neither forgotten nor sized meanwhile
			delete(a.unsized, e)
			e.size, e.there = n, !errors.Is(err, fs.ErrNotExist)
			a.sized += n
			a.forget(e)
		}
		a.mu.Unlock()
	}
	return total, nil
}

// Allocated returns the disk usage of a directory, in bytes.
func (a *Area) Allocated(name string) (n int64, err error) {
	if !a.Has(name) {
		return 0, nil
	}
	err = fs.WalkDir(a.root.FS(), filepath.Join(Top, name), func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += st.Blocks * 512
		}
		return nil
	})
	return n, err
}
