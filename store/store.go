package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// Options are the settings of a Store. The zero value works.
type Options struct {
	// Connections is the number of ranges fetched at the same time, over all blobs.
	// Zero means 8. The store holds at most four times as many chunks of 4 MiB in memory,
	// and 8 more for readers of files that are not complete.
	Connections int

	// Reserve is the space in bytes that stays free on the file system. A fetch that
	// would go below it is refused before its first byte. Zero means 1 GiB.
	Reserve int64

	// Linger is how long a fetch goes on after the last caller that waited for it has
	// gone. Zero means 5 minutes.
	Linger time.Duration

	// Evict says when Run collects.
	Evict EvictOptions

	// Log is where the store reports; nil discards.
	Log *slog.Logger
}

// EvictOptions say when objects that nothing refers to make room.
type EvictOptions struct {
	Interval time.Duration // between looks; zero means 1 minute
	High     int           // percent of the file system in use that starts it; zero means 85
	Low      int           // percent that ends it; zero means 75
	Quota    int64         // bytes of objects; zero means no quota
}

func (o Options) withDefaults() Options {
	o.Connections = cmp.Or(o.Connections, 8)
	o.Reserve = cmp.Or(o.Reserve, 1<<30)
	o.Linger = cmp.Or(o.Linger, 5*time.Minute)
	o.Evict.Interval = cmp.Or(o.Evict.Interval, time.Minute)
	o.Evict.High = cmp.Or(o.Evict.High, 85)
	o.Evict.Low = cmp.Or(o.Evict.Low, 75)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Store is the node's verified bytes. All methods are safe for concurrent use.
type Store struct {
	dir  string
	root *os.Root
	db   *bbolt.DB
	o    Options
	log  *slog.Logger
	boot string // kernel.random.boot_id

	ctx  context.Context // ends all fetches
	stop context.CancelFunc
	work sync.WaitGroup

	buffers      *buffers // of jobs that somebody waits for
	aheadBuffers *buffers // for reading ahead
	idleBuffers  *buffers // of jobs that nobody waits for: they can be told to stand still
	rawBuffers   *buffers // the same, for what is compressed
	readBuffers  *buffers // of readers that wait
	bundles      bundles
	noShare      atomic.Bool // the file system can not share blocks between files
	gate         *gate
	pace         pace
	counts       counts
	unpackers    chan struct{} // held by a job from before its first buffer: unpacking takes memory
	assembling   chan struct{} // held by a hydration that puts files together: they are staged by name

	// gcMu keeps collecting and publishing apart: held for reading while an object gets
	// its file and its record, for writing while objects go. Before mu.
	gcMu sync.RWMutex

	// exposing keeps Expose and withdraw apart. Before a bbolt transaction.
	exposing sync.Mutex

	mu         sync.Mutex // guards what follows
	closed     bool
	jobs       map[digest.Digest]*job             // by blob
	hydrations map[digest.Digest]*hydration       // by table
	decoded    map[digest.Digest]*filetable.Table // of late, see Table
	kept       map[digest.Digest]time.Time        // see keep
	lazy       map[digest.Digest]*lazyFile        // by name
}

var errClosed = fmt.Errorf("the store is closed: %w", errdefs.ErrUnavailable)

// Open opens the store below dir, and makes it if need be. It returns
// errdefs.ErrUnavailable if another process has it open.
func Open(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		dir: dir, root: root, o: o, log: o.Log, ctx: ctx, stop: stop,
		buffers:      newBuffers(2*o.Connections, chunkSize),
		idleBuffers:  newBuffers(max(2, o.Connections/2), chunkSize),
		aheadBuffers: newBuffers(o.Connections, chunkSize),
		rawBuffers:   newBuffers(o.Connections, filetable.MaxChunkLen),
		readBuffers:  newBuffers(readBuffers, chunkSize),
		gate:         newGate(o.Connections),
		jobs:         map[digest.Digest]*job{},
		hydrations:   map[digest.Digest]*hydration{},
		decoded:      map[digest.Digest]*filetable.Table{},
		kept:         map[digest.Digest]time.Time{},
		lazy:         map[digest.Digest]*lazyFile{},
		unpackers:    make(chan struct{}, parallelUnpacks),
		assembling:   make(chan struct{}, 1),
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) open() (err error) {
	// Containers reach objects through overlayfs with the credentials of the mounter;
	// nobody else has business in here.
	for name, mode := range map[string]os.FileMode{
		filepath.Join(objectsDir, digest.SHA256.String()): 0o755, partialDir: 0o700,
	} {
		if err := s.root.MkdirAll(name, mode); err != nil {
			return err
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	s.boot = strings.TrimSpace(string(boot))
	if s.db, err = openDB(filepath.Join(s.dir, "store.db")); err != nil {
		return err
	}
	if err := s.sweepTemp(); err != nil {
		return err
	}
	return s.adopt()
}

// Close stops all fetches, keeping what they have, and closes the store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.root.Close())
}

// Dir returns the absolute directory of the store.
func (s *Store) Dir() string { return s.dir }

// ObjectsDir returns the directory that is a data-only lower layer: the object with digest
// sha256:abcd… is at sha256/ab/abcd… below it, see ObjectName.
func (s *Store) ObjectsDir() string { return filepath.Join(s.dir, objectsDir) }

// PutTable stores an encoded table after validating it, so that Hydrate can work on it.
func (s *Store) PutTable(ctx context.Context, p []byte) (digest.Digest, error) {
	t, err := filetable.Decode(p)
	if err != nil {
		return "", err
	}
	d, err := s.PutBytes(ctx, p)
	if err != nil {
		return "", err
	}
	rec, err := s.resolveRecord(d, t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return "", err
	}
	return d, s.db.Update(func(tx *bbolt.Tx) error {
		old, err := load[tableRecord](tx, bucketTables, d.String())
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		// What was found out since we looked counts: what a table needs never shrinks.
		if old.Complete {
			rec.Complete, rec.Logical = true, old.Logical
		}
		rec.Objects = append(rec.Objects, old.Objects...)
		slices.Sort(rec.Objects)
		rec.Objects = slices.Compact(rec.Objects)
		if err := put(tx, bucketTables, d.String(), rec); err != nil {
			return err
		}
		return attribute(tx)
	})
}

// decodedTables is how many tables are kept decoded.
const decodedTables = 8

// Table returns a table stored by PutTable, or errdefs.ErrNotFound. The caller must not
// change it.
func (s *Store) Table(ctx context.Context, d digest.Digest) (*filetable.Table, error) {
	s.mu.Lock()
	t := s.decoded[d]
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	p, err := s.ReadBytes(ctx, d, filetable.MaxSize)
	if err != nil {
		return nil, err
	}
	if t, err = filetable.Decode(p); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.decoded) >= decodedTables {
		clear(s.decoded)
	}
	s.decoded[d] = t
	return t, nil
}
