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

// TTL is how long abandoned staged files stay.
const TTL = 24 * time.Hour

// An Area is the directory of all partials. Its methods are safe for concurrent use.
type Area struct {
	root *os.Root
	boot string         // kernel.random.boot_id
	work sync.WaitGroup // checkpoints

	mu   sync.Mutex // guards the following; held while a partial is created or collected
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

// Close waits for running checkpoints. There must be no more writes.
func (a *Area) Close() { a.work.Wait() }

// BlobDir returns the name of the directory in which a blob is staged with a layout. Staged bytes
// belong to the group of sources that provides them (transfer.GroupKey): other groups must not get
// bytes that they may not have, or that are not verified.
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

// Hold protects a directory from garbage collection until the same number of Drops.
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

// Tidy is Remove, unless the directory is held.
func (a *Area) Tidy(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[name] > 0 {
		return nil
	}
	return a.Remove(name)
}

// Collect removes the directories and files that are not held and were idle for TTL. It returns their number;
// with dryRun it only counts.
func (a *Area) Collect(dryRun bool) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	entries, err := fs.ReadDir(a.root.FS(), Top)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if a.held[e.Name()] > 0 || a.recent(e.Name()) {
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
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &Partial{area: a, name: name, root: a.root, Dir: filepath.Join(Top, name), Size: size, Pieces: pieces, grid: grid}
	p.head = partialHead{Size: size, Chunk: ChunkSize, Layout: LayoutOf(pieces, grid), Boot: a.boot}
	have, err := p.readHead()
	sameBoot := have.Boot == a.boot
	have.Boot = a.boot
	same := err == nil && have == p.head && (sameBoot || !p.single())
	if same && grid != nil {
		_, err := p.root.Lstat(p.Path("data"))
		same = err == nil // otherwise it became an object just before the process ended
	}
	if !same {
		if !p.single() || !errors.Is(err, fs.ErrNotExist) {
			if err := a.Remove(name); err != nil {
				return nil, err
			}
		}
		if !isFile(grid) {
			if err := p.root.MkdirAll(p.Dir, 0o700); err != nil {
				return nil, err
			}
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

// Marked returns the number of bytes with valid marks of a partial, without opening it: 0 if there
// is none, or one of another layout. It may be written concurrently.
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

// Allocated returns the disk usage of a directory, or of all of them if name is empty, in bytes.
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
