package object

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// Directories of objects, below that of a store.
const (
	Dir        = "objects"
	DamagedDir = "damaged"
)

// Keeps reports whether a directory below the root of a store is better kept open, see dirs.Open.
func Keeps(dir string) bool {
	return dir == DamagedDir || filepath.Dir(dir) == filepath.Join(Dir, digest.SHA256.String()) || filepath.Dir(dir) == Dir
}

// Mode is the mode of every object. Snapshots have their own modes.
const Mode = 0o644

// Name returns the path of an object below Dir, without a leading slash.
func Name(d digest.Digest) string {
	hex := d.Encoded()
	return filepath.Join(d.Algorithm().String(), hex[:2], hex)
}

// Path returns the path of an object below the root of its store.
func Path(d digest.Digest) string { return filepath.Join(Dir, Name(d)) }

// damagedPath returns the path of a file that was set aside.
func damagedPath(d digest.Digest) string { return filepath.Join(DamagedDir, d.Encoded()) }

// graceTime is how long an object without a reference stays after it was made or found, so that a
// reference can be added.
const graceTime = time.Minute

// Options configure Objects. All are required.
type Options struct {
	Root *dirs.Root // of the store
	Temp string     // directory below Root for files that are not yet objects
	DB   *meta.DB
	Log  *slog.Logger
}

// Objects are the objects of a store. All methods are safe for concurrent use.
type Objects struct {
	o Options

	ctx  context.Context // cancels work without a caller
	stop context.CancelFunc

	// collecting separates removing and publishing: it is read-locked while an object gets its file
	// and its record, and locked while objects are removed.
	collecting sync.RWMutex

	removals atomic.Int64 // see Removals
	lost     atomic.Int64 // see Lost

	mu         sync.Mutex // guards the following
	publishing bool       // Publish is running
	waiting    []*publication
	grace      map[digest.Digest]time.Time
	unrecorded map[digest.Digest]*unrecordedFile
	resized    []digest.Digest // set aside because of their size
}

// Open creates the directories and removes what a crash left. It does not look at the files of objects: Compare does.
func Open(o Options) (*Objects, error) {
	// Containers read objects through overlayfs with the credentials of the mounter, who is root.
	for _, name := range []string{topPath, DamagedDir, o.Temp, ViewsDir} {
		if err := o.Root.MkdirAll(name, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Objects{o: o, grace: map[digest.Digest]time.Time{}, unrecorded: map[digest.Digest]*unrecordedFile{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	aside, err := s.Damaged()
	for _, f := range aside { // replaced just before the process ended
		if s.Has(f.Digest) {
			s.removeReplaced(f.Digest)
		}
	}
	if err := errors.Join(err, s.sweepTemp()); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close cancels work without a caller.
func (s *Objects) Close() { s.stop() }

// Exist reports whether there are files below objects.
func Exist(root *os.Root) bool {
	for first := range directories {
		d, err := root.Open(dirPath(byte(first)))
		if err != nil {
			continue // no file can be found
		}
		names, _ := d.Readdirnames(1) // nor here
		d.Close()
		if len(names) > 0 {
			return true
		}
	}
	return false
}

// Open opens a complete, verified object for reading. A file without a record is hashed first. It returns
// errdefs.ErrNotFound if there is no object.
func (s *Objects) Open(d digest.Digest) (*os.File, error) {
	s.recoverFile(s.ctx, d)
	if _, err := s.o.DB.Object(d); err != nil {
		return nil, err
	}
	f, err := s.o.Root.Open(Path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file of object %s is missing: %w", d, errdefs.ErrNotFound)
	}
	return f, err
}

// Allow returns errdefs.ErrNotFound unless d is an object that sources with these names may have. A file without a
// record is hashed first: its record says who may have it.
func (s *Objects) Allow(d digest.Digest, names []string) error {
	s.recoverFile(s.ctx, d)
	rec, err := s.o.DB.Object(d)
	if err == nil && !rec.MayHave(names) {
		err = fmt.Errorf("object %s is private, and not from %q: %w", d, names, errdefs.ErrNotFound)
	}
	return err
}

// Has reports whether an object is recorded and its file has the recorded size. Files without
// a record are not objects (Recover).
func (s *Objects) Has(d digest.Digest) bool {
	_, ok := s.Record(d)
	return ok
}

// Record is Has, and also returns the record.
func (s *Objects) Record(d digest.Digest) (rec meta.Object, ok bool) {
	rec, err := s.o.DB.Object(d)
	if err != nil {
		return rec, false
	}
	size, regular, err := s.o.Root.Size(Path(d))
	return rec, err == nil && regular && size == rec.Size
}

// MayHave is Has for objects that sources with these names may have.
func (s *Objects) MayHave(d digest.Digest, names []string) bool {
	rec, ok := s.Record(d)
	return ok && rec.MayHave(names)
}

// Size returns the size of an object in bytes, or errdefs.ErrNotFound.
func (s *Objects) Size(d digest.Digest) (int64, error) {
	rec, err := s.o.DB.Object(d)
	return rec.Size, err
}

// claim is Has, and keeps the object for graceTime. A file without a record is hashed first.
func (s *Objects) claim(d digest.Digest) bool {
	s.recoverFile(s.ctx, d) // not while holding collecting: hashing takes time
	s.collecting.RLock()
	defer s.collecting.RUnlock()
	if !s.Has(d) {
		return false
	}
	s.Protect(d)
	return true
}

// Protect protects objects that were just made or found until a reference or image that needs them is
// recorded, for at most a minute or as long as anything is being fetched.
func (s *Objects) Protect(objects ...digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range objects {
		s.grace[d] = time.Now()
	}
}

// Unprotect ends the protection of Protect, because a record needs the objects.
func (s *Objects) Unprotect(objects ...digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range objects {
		delete(s.grace, d)
	}
}

// Pause blocks garbage collection until resume is called. An object that was found before is still
// there. Do not open, claim or publish objects in between.
func (s *Objects) Pause() (resume func()) {
	s.collecting.RLock()
	return s.collecting.RUnlock
}

// Put durably stores all as objects, records with them what else arrives, and returns their digests. An object without
// a reference is evictable.
func (s *Objects) Put(a meta.Arrival, all ...[]byte) (digests []digest.Digest, err error) {
	var g errgroup.Group // concurrent syncs share the work of the disk
	defer func() {
		for _, f := range a.Files {
			_ = s.o.Root.Remove(f.Staged) // present after an error, or if a concurrent call made the object
		}
	}()
	for _, p := range all {
		d := digest.FromBytes(p)
		if digests = append(digests, d); s.claim(d) {
			continue
		}
		f := meta.File{Staged: s.temp(), Digest: d, Size: int64(len(p))}
		a.Files = append(a.Files, f)
		g.Go(func() error { return s.write(f.Staged, p) })
	}
	err = g.Wait()
	if err == nil && len(a.Files)+len(a.Tables)+len(a.Images) > 0 {
		err = s.Publish(a)
	}
	if err != nil {
		err = fmt.Errorf("store documents: %w", err)
	}
	return digests, err
}

// write makes a durable file of p.
func (s *Objects) write(name string, p []byte) error {
	f, err := s.o.Root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, Mode)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// temp returns the path of a new temporary file. After a crash sweepTemp removes it.
func (s *Objects) temp() string {
	var b [8]byte
	rand.Read(b[:])
	return filepath.Join(s.o.Temp, staging.TempPrefix+hex.EncodeToString(b[:]))
}

// Read reads and verifies an object of at most limit bytes.
func (s *Objects) Read(d digest.Digest, limit int64) ([]byte, error) {
	f, err := s.Open(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p, err := verify.Read(f, d, info.Size(), limit)
	if isDamage(err) {
		// A damaged object is set aside, so that its tables can be repaired.
		if cerr := s.check(s.ctx, d, info.Size()); cerr != nil && !isDamage(cerr) {
			return nil, errors.Join(err, cerr)
		}
	}
	return p, err
}
