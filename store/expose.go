package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
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

	// Probe asks the sources for a byte of the largest file that is missing, so that what
	// would never arrive is not exposed.
	Probe bool
}

// Expose makes the files of a table readable before they are complete (ReadAt), until no
// reference to the table is left. It fetches small files only; Hydrate brings the rest. It may be
// called again, with other fetchers.
//
// It returns errdefs.ErrFailedPrecondition, saying why, if the table can be read only when it is
// complete, and the error of the sources if none has the bytes.
func (s *Store) Expose(ctx context.Context, table digest.Digest, o ExposeOptions) error {
	t, err := s.Table(ctx, table)
	if err != nil {
		return err
	}
	files, err := s.lazyFiles(t, o)
	if err != nil {
		return err
	}
	if err := s.putInline(ctx, t); err != nil {
		return err
	}
	if o.Probe {
		if err := s.probe(ctx, files, o.Sources); err != nil {
			return err
		}
	}
	if err := s.register(table, files, o.Sources); err != nil {
		return err
	}
	for _, f := range files { // which were completed since we looked
		if s.has(f.file.Digest) {
			s.completed(f.file.Digest)
		}
	}
	return nil
}

// register makes files readable for a table: all, or none.
func (s *Store) register(table digest.Digest, files []lazyEntry, fetchers []transfer.Source) error {
	s.exposing.Lock()
	defer s.exposing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	for _, f := range files {
		if l := s.lazy[f.file.Digest]; l != nil && !l.same(f.how) {
			return fmt.Errorf("file %q is on its way for another table, in other chunks: %w", f.file.Path, errdefs.ErrFailedPrecondition)
		}
	}
	for _, f := range files {
		l := s.offer(f.file, f.how, fetchers)
		l.jobs-- // the table takes the place of a job
		l.tables[table] = true
		l.settle(nil) // somebody asks anew
	}
	return nil
}

// A lazyEntry is a file of a table that is not an object yet.
type lazyEntry struct {
	file filetable.File
	from filetable.Blob
	how  *chunked
}

// lazyFiles returns the files of a table that are missing, or errdefs.ErrFailedPrecondition if
// one can not be read before it is complete.
func (s *Store) lazyFiles(t *filetable.Table, o ExposeOptions) ([]lazyEntry, error) {
	files, err := s.resolve(t)
	if errdefs.IsUnavailable(err) {
		return nil, fmt.Errorf("what is in the model is known only when it is complete: %w: %w", err, errdefs.ErrFailedPrecondition)
	} else if err != nil {
		return nil, err
	}
	blobs := map[digest.Digest]filetable.Blob{}
	for _, b := range t.Blobs {
		blobs[b.Digest] = b
	}
	inChunks := map[digest.Digest]*chunked{}
	for _, u := range unitsOf(t) {
		inChunks[u.blob.Digest] = u.how
	}
	var out []lazyEntry
	early := false // there is something that can be read early
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Source == nil || f.Source.Blob == "" && len(f.Source.Parts) == 0 || f.Size == 0 {
			continue
		}
		if f.Digest == "" {
			return nil, fmt.Errorf("the digest of file %q is known only when it is complete: %w", f.Path, errdefs.ErrFailedPrecondition)
		}
		if seen[f.Digest] || s.has(f.Digest) {
			continue
		}
		seen[f.Digest] = true
		e := lazyEntry{file: f, from: blobs[f.Source.Blob], how: inChunks[f.Digest]}
		switch {
		case e.how != nil:
		case o.Unverified && e.from.Archive == filetable.ArchiveNone && e.from.Digest != "":
			e.how = newUnverified(e.from)
		case !o.Wait && f.Size > SmallFile:
			return nil, fmt.Errorf("file %q has no digests of chunks: %w", f.Path, errdefs.ErrFailedPrecondition)
		}
		early = early || e.how != nil
		out = append(out, e)
	}
	if len(out) > 0 && !early && !o.Wait {
		return nil, fmt.Errorf("no file has digests of chunks: %w", errdefs.ErrFailedPrecondition)
	}
	return out, nil
}

// putInline makes the files that are in the table itself, and empty ones, objects.
func (s *Store) putInline(ctx context.Context, t *filetable.Table) error {
	for _, f := range t.Files {
		if src := f.Source; src == nil || len(src.Parts) > 0 || src.Blob != "" && f.Size > 0 {
			continue
		}
		if _, err := s.PutBytes(ctx, f.Source.Inline); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
	}
	return nil
}

// probe fetches a byte of the largest of the files.
func (s *Store) probe(ctx context.Context, files []lazyEntry, fetchers []transfer.Source) error {
	var largest *lazyEntry
	for i := range files {
		if f := &files[i]; f.from.Size > 0 && (largest == nil || f.file.Size > largest.file.Size) {
			largest = f
		}
	}
	if largest == nil {
		return nil
	}
	var one [1]byte
	t := xfer{s: s, blob: largest.from.Digest, size: largest.from.Size, fetchers: fetchers, received: &s.counts.received, class: urgent}
	err := t.fetchRange(ctx, one[:], largest.from.Size-1)
	if errors.Is(err, errNoRanges) {
		return fmt.Errorf("the registry does not serve ranges of %s: %w", largest.from.Digest, errdefs.ErrFailedPrecondition)
	}
	return err
}

// same says whether the file comes in the same chunks.
func (l *lazyFile) same(how *chunked) bool {
	if l.how == nil || how == nil {
		return l.how == how
	}
	return l.how.recipe == how.recipe
}

// offer returns the lazy file for f with one more job. Only one way to bring a file is known to
// readers: if there is another already, what is returned is the caller's alone. Who calls it
// holds mu.
func (s *Store) offer(f filetable.File, how *chunked, fetchers []transfer.Source) *lazyFile {
	l := s.lazy[f.Digest]
	if l != nil && l.same(how) {
		l.jobs++
		l.mu.Lock()
		if len(fetchers) > 0 {
			l.fetchers = fetchers
		}
		l.mu.Unlock()
		return l
	}
	mine := &lazyFile{
		s: s, name: f.Digest, size: f.Size, path: f.Path, how: how, fetchers: fetchers, jobs: 1,
		tables: map[digest.Digest]bool{}, done: make(chan struct{}), waiting: make(chan struct{}), readers: make(chan struct{}, fileReaders),
	}
	if l == nil {
		s.lazy[f.Digest] = mine
	}
	return mine
}

// dropJob says that a job does not bring a lazy file any more. Who calls it holds mu.
func (s *Store) dropJob(l *lazyFile) {
	if l != nil {
		l.jobs--
		s.forgetUnused(l)
	}
}

// forgetUnused forgets a lazy file that no table shows and no job brings. Who calls it holds mu.
func (s *Store) forgetUnused(l *lazyFile) {
	if l.jobs > 0 || len(l.tables) > 0 {
		return
	}
	if s.lazy[l.name] == l {
		delete(s.lazy, l.name)
	}
	l.leave()
}

// withdraw ends what Expose began, for tables that nothing refers to.
func (s *Store) withdraw(ctx context.Context) error {
	// Who exposes a table has referred to it before: it is among refs, or is exposed later.
	s.exposing.Lock()
	defer s.exposing.Unlock()
	refs, err := s.Refs(ctx, "")
	if err != nil {
		return err
	}
	referred := map[digest.Digest]bool{}
	for _, r := range refs {
		referred[r.Table] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lazy {
		for t := range l.tables {
			if !referred[t] {
				delete(l.tables, t)
			}
		}
		s.forgetUnused(l)
	}
	return nil
}

// completed says that an object is there.
func (s *Store) completed(d digest.Digest) {
	s.mu.Lock()
	l := s.lazy[d]
	delete(s.lazy, d)
	s.mu.Unlock()
	if l == nil {
		return
	}
	l.mu.Lock()
	close(l.done)
	l.mu.Unlock()
	l.retire()
	if l.how != nil {
		if err := s.root.RemoveAll(chunkedDir(l.name, l.how.recipe)); err != nil {
			s.log.Warn("what is left of a fetch stays for a day", "digest", d, "err", err)
		}
	}
}

// shown returns the files of a table that can be read and are not complete, and are as is asks for; nil
// asks for all.
func (s *Store) shown(table digest.Digest, is func(*lazyFile) bool) (files []*lazyFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lazy {
		if l.tables[table] && (is == nil || is(l)) {
			files = append(files, l)
		}
	}
	return files
}

// whole says whether the file can be read only when it is complete.
func (l *lazyFile) whole() bool { return l.how == nil }

// Exposed says whether files of a table can be read that are not complete.
func (s *Store) Exposed(table digest.Digest) bool { return len(s.shown(table, nil)) > 0 }

// Waits says whether files of a table are exposed whose readers wait for all of it.
func (s *Store) Waits(table digest.Digest) bool { return len(s.shown(table, (*lazyFile).whole)) > 0 }

// AwaitSmall waits until the files of a table are complete that can not be read before. Hydrate
// must be running.
func (s *Store) AwaitSmall(ctx context.Context, table digest.Digest) error {
	for _, l := range s.shown(table, (*lazyFile).whole) {
		if err := l.await(ctx); err != nil {
			return fmt.Errorf("file %q: %w", l.path, err)
		}
	}
	return nil
}

// tell says to the readers of a table how an attempt to bring it goes: err is nil when one begins.
func (s *Store) tell(table digest.Digest, err error) {
	for _, l := range s.shown(table, nil) {
		l.settle(err)
	}
}

// stagedDirs returns the directories below the root that fetches and readers use. Who calls it
// holds mu.
func (s *Store) stagedDirs() map[string]bool {
	busy := map[string]bool{}
	for _, l := range s.lazy {
		if l.how != nil {
			busy[chunkedDir(l.name, l.how.recipe)] = true
		}
	}
	for _, h := range s.hydrations {
		for _, u := range h.units {
			busy[u.dir()] = true
		}
	}
	return busy
}
