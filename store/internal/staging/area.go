package staging

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
)

// Top is the directory of all partials, below the root of the store.
const Top = "partial"

// TTL is how long what is staged stays when nobody goes on with it.
const TTL = 24 * time.Hour

// An Area is the directory of all partials. Its methods are safe for concurrent use.
type Area struct {
	root *os.Root
	boot string         // kernel.random.boot_id
	work sync.WaitGroup // checkpoints

	mu   sync.Mutex // guards what follows; held while a partial is made or collected
	held map[string]int
}

// New returns the area below a root.
func New(root *os.Root) (*Area, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	if err := root.MkdirAll(Top, 0o700); err != nil {
		return nil, err
	}
	a := &Area{root: root, boot: strings.TrimSpace(string(boot)), held: map[string]int{}}
	return a, nil
}

// Close waits for the end of checkpoints. Nobody writes any more.
func (a *Area) Close() { a.work.Wait() }

// BlobDir returns the name of the directory in which a blob is staged in one layout. What is on its way
// belongs to the group of sources that brings it (transfer.GroupKey): nobody else gets bytes that he might
// not have, or that nobody has verified.
func BlobDir(d digest.Digest, layout, group string) string {
	return d.Encoded() + "-" + digest.FromString(layout + "\n" + group).Encoded()[:32]
}

// Dirs returns the names of the directories in which a blob is staged.
func (a *Area) Dirs(d digest.Digest) (names []string, err error) {
	entries, err := fs.ReadDir(a.root.FS(), Top)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), d.Encoded()+"-") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Hold keeps a directory from being collected, until as many Drops.
func (a *Area) Hold(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[name]++
}

// Drop ends a Hold.
func (a *Area) Drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[name]--; a.held[name] <= 0 {
		delete(a.held, name)
	}
}

// Remove removes a directory.
func (a *Area) Remove(name string) error {
	err := a.root.RemoveAll(filepath.Join(Top, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Tidy is Remove unless somebody holds the directory.
func (a *Area) Tidy(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[name] > 0 {
		return nil
	}
	return a.Remove(name)
}

// Collect removes the directories that nobody holds and nobody went on with for TTL. It returns how
// many these are; with dryRun it only counts.
func (a *Area) Collect(dryRun bool) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	entries, err := fs.ReadDir(a.root.FS(), Top)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.IsDir() || a.held[e.Name()] > 0 || a.recent(e.Name()) {
			continue
		}
		if n++; dryRun {
			continue
		}
		if err := a.Remove(e.Name()); err != nil {
			return n, err
		}
	}
	return n, nil
}

// recent says whether somebody worked on a directory of late.
func (a *Area) recent(name string) bool {
	for _, file := range []string{"marks", "single", "data"} {
		if info, err := a.root.Lstat(filepath.Join(Top, name, file)); err == nil && time.Since(info.ModTime()) < TTL {
			return true
		}
	}
	return false
}

// Open opens what there is of a blob in a directory, or begins anew. The directory is held until Close.
// Chunks begin where grid says, or, if it is nil, every ChunkSize bytes.
func (a *Area) Open(name string, size int64, pieces []Piece, grid []int64) (*Partial, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &Partial{area: a, name: name, root: a.root, Dir: filepath.Join(Top, name), Size: size, Pieces: pieces, grid: grid}
	p.head = partialHead{Size: size, Chunk: ChunkSize, Layout: LayoutOf(pieces, grid), Boot: a.boot}
	have, err := p.readHead()
	sameBoot := have.Boot == a.boot
	have.Boot = a.boot
	same := err == nil && have == p.head && (sameBoot || !p.single())
	if _, err := p.root.Lstat(p.Path("data")); grid != nil && err != nil {
		same = false // it became an object in the moment before the end of the process
	}
	if !same {
		if err := a.Remove(name); err != nil {
			return nil, err
		}
		if err := p.root.MkdirAll(p.Dir, 0o700); err != nil {
			return nil, err
		}
	}
	if p.single() {
		err = p.openSingle(same)
	} else {
		err = p.openMarks(same, sameBoot)
	}
	if err != nil {
		return nil, err
	}
	a.held[name]++
	return p, nil
}

// Marked returns how many bytes the marks of a partial vouch for, without opening it for work: 0 if
// there is none, or one of something else. Somebody may be writing it.
func (a *Area) Marked(name string, size int64, grid []int64) (n int64) {
	p := &Partial{root: a.root, Dir: filepath.Join(Top, name), Size: size, grid: grid}
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
		if m == markSynced || m == markWritten && head.Boot == a.boot {
			_, size := p.Chunk(i)
			n += size
		}
	}
	return n
}

// Allocated returns the bytes that a directory, or with an empty name all of them, takes on the disk.
func (a *Area) Allocated(name string) (n int64, err error) {
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
