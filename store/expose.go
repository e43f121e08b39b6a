package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// SmallFile is the size in bytes up to which files without chunks are waited for before a model
// is shown, rather than by its readers.
const SmallFile = 4 << 20

// ExposeOptions are the settings of one Expose.
type ExposeOptions struct {
	// Sources are asked in order; the next one after an error.
	Sources []transfer.Source

	// Wait also exposes large files without chunks: who reads one waits until it is
	// complete.
	Wait bool

	// Unverified also exposes raw files without chunks for reading at once. Their bytes are
	// verified when all of them are there; a reader may have got wrong ones by then.
	Unverified bool

	// Probe makes sure that what is exposed can arrive: that there is room for it, and that the
	// sources have a byte of the largest file that is missing.
	Probe bool
}

// An exposure is a file that can be read before it is an object, for the tables that show it. What
// readers see of a digest comes in one way only (meta.Ways).
type exposure struct {
	digest digest.Digest
	size   int64           // bytes
	path   string          // one of its paths, for messages
	file   *chunkfile.File // nil: it can be read only when all of it is there

	tables map[digest.Digest]bool // guarded by Store.mu
	done   chan struct{}          // closed when it is an object

	mu      sync.Mutex    // guards what follows
	failed  error         // why it could not be brought, until the next attempt
	waiting chan struct{} // closed when failed is set
}

// A shownFile is a file of a table that is not an object yet.
type shownFile struct {
	file   filetable.File
	layout *chunkfile.Layout // nil: see exposure.file
}

// Expose makes the files of a table readable before they are complete (ReadAt), until no
// reference to the table is left. It fetches nothing but what Probe asks for; Hydrate brings the rest.
// It may be called again, with other sources.
//
// It returns errdefs.ErrFailedPrecondition, saying why, if the table can be read only when it is
// complete, and the error of the sources if none has the bytes.
func (s *Store) Expose(ctx context.Context, table digest.Digest, o ExposeOptions) error {
	t, err := s.Table(ctx, table)
	if err != nil {
		return err
	}
	files, err := s.missingFiles(t, o)
	if err != nil {
		return err
	}
	if err := s.engine.PutInline(ctx, t); err != nil {
		return err
	}
	before := s.Exposed(table)
	if err := s.register(table, files, o.Sources); err != nil {
		return err
	}
	if o.Probe {
		if err := s.probe(ctx, files); err != nil {
			if !before {
				s.unexpose(table)
			}
			return err
		}
	}
	for _, f := range files { // which were completed since we looked
		if s.has(f.file.Digest) {
			s.completed(f.file.Digest)
		}
	}
	return nil
}

// missingFiles returns the files of a table that are missing, or errdefs.ErrFailedPrecondition if
// one can not be read before it is complete.
func (s *Store) missingFiles(t *filetable.Table, o ExposeOptions) ([]shownFile, error) {
	files, err := s.resolve(t)
	if errdefs.IsUnavailable(err) {
		return nil, fmt.Errorf("what is in the model is known only when it is complete: %w: %w", err, errdefs.ErrFailedPrecondition)
	} else if err != nil {
		return nil, err
	}
	layouts := map[digest.Digest]*chunkfile.Layout{}
	for _, target := range hydrate.Plan(t, transfer.GroupKey(o.Sources)) {
		for _, f := range target.Files {
			if !f.Layout.Unverified || o.Unverified {
				layouts[f.File.Digest] = f.Layout
			}
		}
	}
	var from transfer.Sources
	from.Set("", o.Sources)
	var out []shownFile
	early := false // there is something that can be read early
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Source == nil || f.Source.Blob == "" && len(f.Source.Parts) == 0 || f.Size == 0 {
			continue
		}
		layout := layouts[f.Digest]
		switch {
		case f.Digest == "":
			return nil, fmt.Errorf("the digest of file %q is known only when it is complete: %w", f.Path, errdefs.ErrFailedPrecondition)
		case seen[f.Digest] || s.mayHave(f.Digest, &from):
			continue
		case s.has(f.Digest):
			return nil, fmt.Errorf("file %q has to come from its own source first: %w", f.Path, errdefs.ErrFailedPrecondition)
		case layout == nil && !o.Wait && f.Size > SmallFile:
			return nil, fmt.Errorf("file %q has no digests of chunks: %w", f.Path, errdefs.ErrFailedPrecondition)
		}
		seen[f.Digest] = true
		early = early || layout != nil
		out = append(out, shownFile{file: f, layout: layout})
	}
	if len(out) > 0 && !early && !o.Wait {
		return nil, fmt.Errorf("no file has digests of chunks: %w", errdefs.ErrFailedPrecondition)
	}
	return out, nil
}

// register makes files readable for a table: all, or none. In which way each is brought is recorded
// before anybody can read it, and stays for as long as a table shows it.
func (s *Store) register(table digest.Digest, files []shownFile, sources []transfer.Source) error {
	s.exposing.Lock()
	defer s.exposing.Unlock()
	ways := map[digest.Digest]digest.Digest{}
	for _, f := range files {
		ways[f.file.Digest] = identityOf(f.file.Digest, f.layout)
	}
	if err := s.db.PutWays(table, ways); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	for _, f := range files {
		if x := s.exposures[f.file.Digest]; x != nil && !x.comesAs(f.layout) {
			return fmt.Errorf("file %q is on its way for another table, in another way: %w", f.file.Path, errdefs.ErrFailedPrecondition)
		}
	}
	for _, f := range files {
		x := s.exposures[f.file.Digest]
		if x == nil {
			x = &exposure{
				digest: f.file.Digest, size: f.file.Size, path: f.file.Path,
				tables: map[digest.Digest]bool{}, done: make(chan struct{}), waiting: make(chan struct{}),
			}
			if f.layout != nil {
				x.file = s.files.Acquire(x.digest, x.size, x.path, f.layout)
			}
			s.exposures[x.digest] = x
		}
		x.tables[table] = true
		if x.file != nil {
			x.file.Sources.Set(table.String(), sources)
		}
		x.settle(nil) // somebody asks anew
	}
	return nil
}

// comesAs says whether the file is brought in the same way from the same sources.
func (x *exposure) comesAs(l *chunkfile.Layout) bool {
	if x.file == nil || l == nil {
		return x.file == nil && l == nil
	}
	return x.file.Layout.ID == l.ID && x.file.Layout.Group == l.Group
}

// probe makes sure that files can arrive: that they have room, and that the sources have a byte of the
// largest of them.
func (s *Store) probe(ctx context.Context, files []shownFile) error {
	var need int64
	var largest *shownFile
	for i := range files {
		f := &files[i]
		need += f.file.Size
		if f.layout != nil {
			need -= s.area.Marked(f.layout.Dir(f.file.Digest), f.file.Size, f.layout.Grid())
			if largest == nil || f.file.Size > largest.file.Size {
				largest = f
			}
		}
	}
	release, err := s.reserve(ctx, need, func() int64 { return need })
	if err != nil {
		return err
	}
	release()
	if largest == nil {
		return nil
	}
	x := s.exposure(largest.file.Digest)
	if x == nil || x.file == nil { // it is an object by now
		return nil
	}
	from := largest.layout.From
	var one [1]byte
	fetch := transfer.Fetch{
		Scheduler: s.scheduler, Blob: from.Digest, Size: from.Size, From: &x.file.Sources,
		Flow: s.scheduler.NewFlow(transfer.Urgent), Received: &s.files.Counts.Received,
	}
	_, err = fetch.Range(ctx, nil, one[:], from.Size-1)
	if errors.Is(err, transfer.ErrNoRanges) {
		return fmt.Errorf("the registry does not serve ranges of %s: %w", from.Digest, errdefs.ErrFailedPrecondition)
	}
	return err
}

// unexpose ends what Expose began for a table.
func (s *Store) unexpose(tables ...digest.Digest) {
	s.exposing.Lock()
	defer s.exposing.Unlock()
	s.mu.Lock()
	for d, x := range s.exposures {
		for _, t := range tables {
			if x.tables[t] && x.file != nil {
				x.file.Sources.Drop(t.String())
			}
			delete(x.tables, t)
		}
		if len(x.tables) == 0 {
			delete(s.exposures, d)
			if x.file != nil {
				s.files.Release(x.file)
			}
		}
	}
	s.mu.Unlock()
	if err := s.db.DropWays(tables); err != nil {
		s.log.Warn("other ways to bring files of a model wait for a restart", "err", err)
	}
}

// withdraw ends what Expose began, for tables that nothing refers to.
func (s *Store) withdraw(ctx context.Context) error {
	// Who exposes a table has referred to it before: it is among refs, or is exposed later.
	refs, err := s.Refs(ctx, "")
	if err != nil {
		return err
	}
	referred := map[digest.Digest]bool{}
	for _, r := range refs {
		referred[r.Table] = true
	}
	var gone []digest.Digest
	s.mu.Lock()
	for _, x := range s.exposures {
		for t := range x.tables {
			if !referred[t] {
				gone = append(gone, t)
			}
		}
	}
	s.mu.Unlock()
	if len(gone) > 0 {
		s.unexpose(gone...)
	}
	return nil
}

// completed says that a file is an object.
func (s *Store) completed(d digest.Digest) {
	if o, ok := s.objects.Record(d); ok {
		s.engine.Arrived(d, func(from *transfer.Sources) bool { return mayHave(o, from) })
	}
	s.mu.Lock()
	x := s.exposures[d]
	delete(s.exposures, d)
	s.mu.Unlock()
	if x == nil {
		return
	}
	close(x.done)
	if x.file == nil {
		return
	}
	if err := x.file.Move(); err != nil {
		s.log.Warn("what is left of a fetch stays for a day", "digest", d, "err", err)
	}
	s.files.Release(x.file)
}

func (s *Store) exposure(d digest.Digest) *exposure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exposures[d]
}

// shown returns the files of a table that can be read and are not complete, and are as is asks for; nil
// asks for all.
func (s *Store) shown(table digest.Digest, is func(*exposure) bool) (files []*exposure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.exposures {
		if x.tables[table] && (is == nil || is(x)) {
			files = append(files, x)
		}
	}
	return files
}

// whole says whether the file can be read only when it is complete.
func (x *exposure) whole() bool { return x.file == nil }

// Exposed says whether files of a table can be read that are not complete.
func (s *Store) Exposed(table digest.Digest) bool { return len(s.shown(table, nil)) > 0 }

// HasUnchunked says whether files of a table are exposed whose readers wait for all of it.
func (s *Store) HasUnchunked(table digest.Digest) bool {
	return len(s.shown(table, (*exposure).whole)) > 0
}

// Unverified says whether files of a table can be read now before any digest over their bytes has
// matched (ExposeOptions.Unverified).
func (s *Store) Unverified(table digest.Digest) bool {
	return len(s.shown(table, func(x *exposure) bool { return x.file != nil && x.file.Layout.Unverified })) > 0
}

// AwaitSmall waits until the files of a table are complete that can not be read before. Hydrate
// must be running.
func (s *Store) AwaitSmall(ctx context.Context, table digest.Digest) error {
	for _, x := range s.shown(table, (*exposure).whole) {
		if err := s.await(ctx, x); err != nil {
			return fmt.Errorf("file %q: %w", x.path, err)
		}
	}
	return nil
}

// tell says to the readers of a table how an attempt to bring it goes: err is nil when one begins.
func (s *Store) tell(table digest.Digest, err error) {
	for _, x := range s.shown(table, nil) {
		x.settle(err)
	}
}

// ReadAt reads bytes of a file, complete or not, as io.ReaderAt does. It waits until the bytes
// are there and verified: until their chunk is, or the whole file if it has no chunks.
//
// It returns errdefs.ErrNotFound for a file that is neither complete nor exposed, a *verify.Error
// if no source has the right bytes, and the error of the sources if none of them can be reached.
func (s *Store) ReadAt(ctx context.Context, d digest.Digest, b []byte, off int64) (int, error) {
	if x := s.exposure(d); x != nil {
		n, err := s.readEarly(ctx, x, b, off)
		// What was on its way when the object came from elsewhere has failed.
		if err == nil || err == io.EOF || !x.complete() {
			if err != nil && err != io.EOF && ctx.Err() == nil {
				s.failed.Add(1)
				err = fmt.Errorf("file %q (%s): %w", x.path, d, err)
			}
			return n, err
		}
	}
	f, err := s.OpenObject(d)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b, off)
}

func (s *Store) readEarly(ctx context.Context, x *exposure, b []byte, off int64) (int, error) {
	if off < 0 || off >= x.size {
		return 0, io.EOF
	}
	if x.file == nil {
		return 0, cmp.Or(s.await(ctx, x), chunkfile.ErrMoved)
	}
	n, err := x.file.ReadAt(ctx, b, off)
	if errors.Is(err, transfer.ErrNoRanges) {
		return 0, cmp.Or(s.await(ctx, x), chunkfile.ErrMoved)
	}
	return n, err
}

// complete says whether the file is an object.
func (x *exposure) complete() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// await returns nil when a file is an object, or why it does not become one for now. What brings it
// is told that somebody waits.
func (s *Store) await(ctx context.Context, x *exposure) error {
	for {
		x.mu.Lock()
		failed, waiting := x.failed, x.waiting
		x.mu.Unlock()
		switch {
		case x.complete():
			return nil
		case failed != nil:
			return failed
		}
		began := s.engine.Began()
		s.promote(x)
		select {
		case <-x.done:
		case <-waiting:
		case <-began:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// promote makes urgent what brings a file that somebody waits for.
func (s *Store) promote(x *exposure) {
	s.mu.Lock()
	var tables []digest.Digest
	for t := range x.tables {
		tables = append(tables, t)
	}
	s.mu.Unlock()
	for _, t := range tables {
		s.engine.Await(t, x.digest)
	}
}

// settle says how an attempt to bring the file went: err is nil when one begins.
func (x *exposure) settle(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case err == nil && x.failed != nil:
		x.failed, x.waiting = nil, make(chan struct{})
	case err != nil && x.failed == nil:
		x.failed = err
		close(x.waiting)
	}
}
