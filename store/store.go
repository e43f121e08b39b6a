package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/expose"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Options are the settings of a Store. The zero value works.
type Options struct {
	// Connections is the number of ranges fetched concurrently, over all blobs. Zero means 8. The
	// store has at most twice as many chunks of 4 MiB in memory, and 8 more for readers of
	// incomplete files; twice that for compressed chunks. This memory is not on the Go heap.
	Connections int

	// Reserve is the space in bytes that stays free on the file system. A fetch that would use it
	// is refused before its first byte. Zero means 1 GiB.
	Reserve int64

	// Linger is how long a fetch continues after its last caller has gone. Zero means 5 minutes.
	Linger time.Duration

	// Evict configures when Run evicts objects.
	Evict EvictOptions

	// GGUF returns a reader of the header of a GGUF file of a size in bytes, which is fetched before tensors. Nil: only
	// the first chunk of such a file is.
	GGUF func(size int64) Sniffer

	// Chains keeps the chains of states of blobs that are downloaded whole, 8 KiB for 1 GiB, see Store.Chain.
	Chains bool

	// Completed is called when a table has become complete, or was found to be, and must return at once; may be nil.
	Completed func(table digest.Digest)

	// Log is the logger; nil discards.
	Log *slog.Logger
}

// readers limits the groups of chunks in memory for waiting readers, and unpackers the archives
// that are unpacked concurrently, because each can need much memory.
const (
	readers   = 8
	unpackers = 2
)

// EvictOptions configure when unreferenced objects are evicted.
type EvictOptions struct {
	Interval time.Duration // between checks; zero means 1 minute
	High     int           // percent of the file system in use that starts eviction; zero means 85
	Low      int           // percent that ends eviction; zero means 75
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

type (
	// ExposeOptions are the settings of one Expose.
	ExposeOptions = expose.Request

	// A Catalog has the images of the store, its references and verdicts.
	Catalog = meta.Catalog

	// Views are the files of tables, complete or not, that may be read for references.
	Views = expose.Views

	// A View is the set of files that may be read for one reference, by digest.
	View = expose.View

	// Early describes the incomplete files of a table in a view.
	Early = expose.Early
)

// Store keeps the verified bytes of a node. All methods are safe for concurrent use.
type Store struct {
	Catalog Catalog
	Views   Views

	dir     string
	root    *dirs.Root
	db      *meta.DB
	objects *object.Objects
	o       Options
	log     *slog.Logger

	ctx  context.Context // cancels all work
	stop context.CancelFunc

	scheduler *transfer.Scheduler
	area      *staging.Area
	files     *chunkfile.Set
	engine    *hydrate.Engine
	exposed   *expose.Set
	ledger    ledger
	decoded   decoded
	scrubbed  atomic.Int64 // bytes
}

// Open opens the store below dir, which is created if needed. It returns errdefs.ErrUnavailable if
// another process has it open.
func Open(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := dirs.Open(dir, func(dir string) bool { return staging.Keeps(dir) || object.Keeps(dir) })
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		dir: dir, root: root, o: o, log: o.Log, ctx: ctx, stop: stop,
		scheduler: transfer.NewScheduler(transfer.Options{
			Connections: o.Connections, Chunk: filetable.MaxChunkLen, Readers: readers, Unpackers: unpackers,
		}),
	}
	s.files = &chunkfile.Set{Scheduler: s.scheduler, Finder: host{s}, Chains: o.Chains, Log: o.Log}
	s.engine = &hydrate.Engine{Scheduler: s.scheduler, Files: s.files, Root: root, Objects: host{s}, Linger: o.Linger, GGUF: o.GGUF, Log: o.Log}
	s.engine.Begin()
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if s.area, err = staging.New(s.root); err != nil {
		return err
	}
	s.files.Area, s.engine.Area = s.area, s.area
	if s.db, err = meta.Open(s.dbPath(), meta.Options{Expected: object.Exist(s.root.Root), Log: s.log}); err != nil {
		return err
	}
	s.Catalog = s.db.Catalog
	if s.objects, err = object.Open(object.Options{Root: s.root, Temp: staging.Top, DB: s.db, Log: s.log}); err != nil {
		return err
	}
	s.exposed = expose.New(expose.Options{
		Dir: s.dir, DB: s.db, Objects: s.objects, Area: s.area, Files: s.files, Engine: s.engine, Log: s.log,
		Table: s.windowed, Reserve: host{s}.reserveExposed,
	})
	s.Views = s.exposed.Views()
	return nil
}

func (s *Store) dbPath() string { return filepath.Join(s.dir, dbName) }

// SchemaVersion is the version of the schema that this package writes, a whole number.
const SchemaVersion = meta.SchemaVersion

// Schema returns the version of the schema of the store in dir, which another process may have open. A
// version of ballast opens stores of its own schema and of earlier ones. It returns errdefs.ErrNotFound if
// there is no store, or an early version made it.
func Schema(dir string) (string, error) { return meta.Schema(filepath.Join(dir, "store.db")) }

// Close stops all fetches, keeping their staged bytes, and closes the store.
func (s *Store) Close() error {
	s.stop()
	if s.exposed != nil {
		s.exposed.Close()
	}
	s.engine.Close()
	s.files.Close()
	if s.area != nil {
		s.area.Close()
	}
	if s.objects != nil {
		s.objects.Close()
	}
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.root.Close())
}

// AwaitWrites waits until the database can be written. It does not return while a write hangs.
func (s *Store) AwaitWrites() error { return s.db.AwaitWrites() }

// Dir returns the absolute directory of the store.
func (s *Store) Dir() string { return s.dir }

// ObjectsDir returns the directory that serves as data-only lower layer: the object with digest
// sha256:abcd… is at sha256/ab/abcd… below it, see ObjectName.
func (s *Store) ObjectsDir() string { return filepath.Join(s.dir, object.Dir) }

// PutTable validates and stores an encoded table.
func (s *Store) PutTable(p []byte) (digest.Digest, error) {
	d := digest.FromBytes(p)
	rec, err := s.recordOf(d, p)
	if err != nil {
		return "", err
	}
	_, err = s.putDocuments(meta.Arrival{Tables: map[digest.Digest]meta.Table{d: rec}}, p)
	return d, err
}

// recordOf validates an encoded table, and returns its record.
func (s *Store) recordOf(d digest.Digest, p []byte) (meta.Table, error) {
	t, err := s.decoded.decode(d, p)
	if err != nil {
		return meta.Table{}, err
	}
	rec, err := s.resolveRecord(d, t)
	if errdefs.IsUnavailable(err) {
		err = nil
	}
	return rec, err
}

// Table returns a table stored by PutTable, or errdefs.ErrNotFound. The caller must not change it.
func (s *Store) Table(d digest.Digest) (*filetable.Table, error) {
	if t := s.decoded.table(d); t != nil {
		return t, nil
	}
	p, err := s.objects.Read(d, filetable.MaxSize)
	if err != nil {
		return nil, err
	}
	return s.decoded.decode(d, p)
}
