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

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// The directories of objects, below that of a store.
const (
	Dir        = "objects"
	DamagedDir = "damaged"
)

// Mode is the mode of every object. Snapshots show their own modes.
const Mode = 0o644

// Name returns the path of an object below Dir, without a leading slash.
func Name(d digest.Digest) string {
	hex := d.Encoded()
	return filepath.Join(d.Algorithm().String(), hex[:2], hex)
}

// Path returns the path of an object below the root of its store.
func Path(d digest.Digest) string { return filepath.Join(Dir, Name(d)) }

// damagedPath returns where the file of an object is set aside.
func damagedPath(d digest.Digest) string { return filepath.Join(DamagedDir, d.Encoded()) }

// graceTime is how long an object without a reference stays in any case after it was made or
// found: whoever made it needs a moment to refer to it.
const graceTime = time.Minute

// Options are what Objects work with. All are needed.
type Options struct {
	Root  *os.Root // of the store
	Temp  string   // a directory below Root for files that are not objects yet
	DB    *meta.DB
	Files *Files // of Root, since when nobody has changed them
	Log   *slog.Logger
}

// Objects are the objects of a store. All methods are safe for concurrent use.
type Objects struct {
	o Options

	ctx  context.Context // ends what nobody waits for who could give up
	stop context.CancelFunc

	// collecting keeps removing and publishing apart: held for reading while an object gets its
	// file and its record, for writing while objects go.
	collecting sync.RWMutex

	again []digest.Digest // were set aside by Open for their size; not changed after it

	withheld atomic.Int64 // see Withheld

	mu         sync.Mutex // guards what follows
	publishing bool       // somebody does
	waiting    []*publication
	grace      map[digest.Digest]time.Time
	doubted    map[digest.Digest]*doubt
}

// Open makes the directories, removes what a crash left, and compares files and records. It hashes
// only small files.
func Open(o Options) (*Objects, error) {
	// Containers reach objects through overlayfs with the credentials of the mounter, whose root this is.
	for _, name := range []string{filepath.Join(Dir, digest.SHA256.String()), DamagedDir, o.Temp, ViewsDir} {
		if err := o.Root.MkdirAll(name, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Objects{o: o, grace: map[digest.Digest]time.Time{}, doubted: map[digest.Digest]*doubt{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.sweepTemp(); err != nil {
		return nil, err
	}
	return s, s.adopt()
}

// Close ends what goes on in the background of others.
func (s *Objects) Close() { s.stop() }

// Any says whether there is an object, or what is left of one, below the root of a store.
func Any(root *os.Root) bool {
	found := false
	// An error means there is none that could be seen.
	_ = fs.WalkDir(root.FS(), Dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			found = true
			return fs.SkipAll
		}
		return err
	})
	return found
}

// Open opens a complete, verified object for reading. What is doubted is hashed first.
// It returns errdefs.ErrNotFound if there is none.
func (s *Objects) Open(d digest.Digest) (*os.File, error) {
	s.prove(s.ctx, d)
	if _, err := s.o.DB.Object(d); err != nil {
		return nil, err
	}
	f, err := s.o.Root.Open(Path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("object %s is recorded, but its file is gone: %w", d, errdefs.ErrNotFound)
	}
	return f, err
}

// Has says whether an object is recorded and its file has the recorded size. What is doubted is none
// (Prove).
func (s *Objects) Has(d digest.Digest) bool {
	_, ok := s.Record(d)
	return ok
}

// Record is Has, and returns what is recorded.
func (s *Objects) Record(d digest.Digest) (rec meta.Object, ok bool) {
	rec, err := s.o.DB.Object(d)
	if err != nil {
		return rec, false
	}
	info, err := s.o.Root.Lstat(Path(d))
	return rec, err == nil && info.Mode().IsRegular() && info.Size() == rec.Size
}

// Size returns the size of an object in bytes, or errdefs.ErrNotFound.
func (s *Objects) Size(d digest.Digest) (int64, error) {
	rec, err := s.o.DB.Object(d)
	return rec.Size, err
}

// claim is Has, and keeps the object for a moment. What is doubted is hashed first.
func (s *Objects) claim(d digest.Digest) bool {
	s.prove(s.ctx, d) // not while collecting is held: it takes a while
	s.collecting.RLock()
	defer s.collecting.RUnlock()
	if !s.Has(d) {
		return false
	}
	s.Keep(d)
	return true
}

// Keep protects objects that were just made or found, until a reference or an image that
// needs them is recorded, for a minute at most, or as long as anything is being fetched.
func (s *Objects) Keep(objects ...digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range objects {
		s.grace[d] = time.Now()
	}
}

// HandOver ends the protection of Keep: something recorded needs the objects.
func (s *Objects) HandOver(objects ...digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range objects {
		delete(s.grace, d)
	}
}

// Pause holds collections off until the result is called. Who was told before that something is
// there finds it. Who holds them off must not open, claim or publish objects.
func (s *Objects) Pause() (resume func()) {
	s.collecting.RLock()
	return s.collecting.RUnlock
}

// Put stores p as an object and returns its digest. It is durable on return.
// An object without a reference is evictable.
func (s *Objects) Put(p []byte) (digest.Digest, error) {
	d := digest.FromBytes(p)
	if s.claim(d) {
		return d, nil
	}
	name := s.temp()
	f, err := s.o.Root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, Mode)
	if err != nil {
		return "", err
	}
	_, err = f.Write(p)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.Publish([]File{{From: name, Digest: d, Size: int64(len(p))}}, meta.Arrival{})
	}
	if err != nil {
		s.o.Root.Remove(name)
		return "", fmt.Errorf("store object %s: %w", d, err)
	}
	return d, nil
}

// tempPrefix begins the names of files that are not objects yet.
const tempPrefix = "bytes-"

// temp returns the path of a new file that a crash leaves to sweepTemp.
func (s *Objects) temp() string {
	var b [8]byte
	rand.Read(b[:])
	return filepath.Join(s.o.Temp, tempPrefix+hex.EncodeToString(b[:]))
}

// Read reads an object of at most limit bytes, verified.
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
	if isBad(err) {
		// If it still is, it is set aside, so that what needs it can be mended.
		if cerr := s.check(s.ctx, d, info.Size()); cerr != nil && !isBad(cerr) {
			return nil, errors.Join(err, cerr)
		}
	}
	return p, err
}
