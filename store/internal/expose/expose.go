package expose

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// smallFile is the size in bytes up to which a model is shown only after its files without chunks
// are complete. Larger ones are waited for by their readers.
const smallFile = 4 << 20

// Request has the settings of one Expose.
type Request struct {
	// View is the reference that the files are shown for; empty means the common view.
	View string

	// Sources are tried in order.
	Sources []transfer.Source

	// Wait also exposes large files without chunks: a read waits until the file is complete.
	Wait bool

	// Whole lets no file be read before it is complete, whatever digests its chunks have. Needs Wait.
	Whole bool

	// Probe checks that the files can arrive: that there is space for them, that the sources have a byte
	// of the largest missing file, and that the beginning of the largest of each compressed blob can be
	// decompressed.
	Probe bool
}

// An exposure is a file of a view that can be read before it is an object, for the tables that show
// it. All readers of a view get the bytes of a digest in the same way (meta.PutWays).
//
//	not in the view ── Expose ──▶ exposed ── object, and allowed: compared, linked ──▶ in the view
//	       ▲                       │                                                          │
//	       └── no reference ───────┴──────── no reference and collected, or damaged ◀─────────┘
//
// A file keeps its identity when it becomes an object only if all bytes that were read are right; a
// mismatch is recorded before the wrong bytes are dropped. If Expose probes, space for exposed files
// is reserved until they are complete or hydrated.
type exposure struct {
	view   string
	digest digest.Digest
	size   int64           // bytes
	path   string          // one of its paths, for messages
	file   *chunkfile.File // nil: readable only when complete
	staged int64           // bytes staged before
	reads  atomic.Int64    // that run

	recording *recording
	track     *track // of the file in it

	tables    map[digest.Digest]string // groups of their sources; guarded by Set.mu
	from      transfer.Sources         // sources of all tables
	identity  atomic.Value             // digest.Digest
	comparing atomic.Bool              // a call of Arrived compares it with its object
	done      chan struct{}            // closed when it is an object in the view

	mu      sync.Mutex    // guards the following
	failed  error         // the error of the last attempt, until the next
	waiting chan struct{} // closed when failed is set
}

// A missingFile is a file of a table that is not yet an object.
type missingFile struct {
	file   filetable.File
	layout *chunkfile.Layout // nil: see exposure.file
	staged int64             // bytes
}

// Expose makes the files of a table readable in a view before they are complete (View.ReadAt),
// until the reference of the view is removed or, for the common view, the last reference to the
// table. It also adds complete files to the view if the sources may have them. It fetches nothing
// but what Probe checks; Hydrate fetches the rest. It may be called again with other sources.
//
// It returns errdefs.ErrFailedPrecondition, with the reason, if the table can be read only when
// complete, and the error of the sources if none has the bytes.
func (v Views) Expose(ctx context.Context, table digest.Digest, o Request) error {
	s := v.set
	t, err := s.Table(table)
	if err != nil {
		return err
	}
	files, err := s.missingFiles(t, o)
	if err != nil {
		return err
	}
	if err := s.Engine.PutInline(t); err != nil {
		return err
	}
	_, before := v.Early(table)[o.View]
	if err := s.register(table, files, o); err != nil {
		return err
	}
	if o.Probe {
		if err := s.probe(ctx, table, files, o); err != nil {
			if !before {
				s.exposing.Lock()
				s.unexpose(o.View, table)
				s.exposing.Unlock()
			}
			return err
		}
	}
	for _, f := range files { // completed in the meantime
		if s.Objects.Has(f.file.Digest) {
			s.Arrived(f.file.Digest, "")
		}
	}
	if o.View == "" {
		return nil
	}
	_, err = s.grantTable(o.View, t, o.Sources)
	return err
}

// missingFiles returns the missing files of a table, or errdefs.ErrFailedPrecondition if a file
// cannot be read before it is complete.
func (s *Set) missingFiles(t *filetable.Table, o Request) ([]missingFile, error) {
	files, err := hydrate.Resolve(s.DB, t)
	if errdefs.IsUnavailable(err) {
		return nil, fmt.Errorf("the files of the model are known only when it is complete: %w: %w", err, errdefs.ErrFailedPrecondition)
	} else if err != nil {
		return nil, err
	}
	layouts := layoutsOf(t, o.Sources)
	if o.Whole {
		clear(layouts)
	}
	from := transfer.Names(o.Sources)
	var out []missingFile
	early := false // something can be read early
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Source == nil || f.Source.Blob == "" && len(f.Source.Parts) == 0 || f.Size == 0 {
			continue
		}
		layout := layouts[f.Digest]
		if layout != nil && layout.Chained() { // it may have begun before its chain was known
			way, err := s.DB.Way(o.View, f.Digest)
			if err != nil {
				return nil, err
			}
			if way == f.Digest || way != identityOf(f.Digest, layout) && s.Engine.Begun(layout) {
				layout = nil
			}
		}
		switch {
		case f.Digest == "":
			return nil, fmt.Errorf("the digest of file %q is known only when it is complete: %w", f.Path, errdefs.ErrFailedPrecondition)
		case seen[f.Digest] || s.Objects.MayHave(f.Digest, from):
			continue
		// The common view does not distinguish readers, and content of an archive must not be shown
		// to readers without the archive.
		case (o.View == "" || layout == nil && f.Source.Blob != f.Digest) && s.Objects.Has(f.Digest):
			return nil, fmt.Errorf("file %q must be fetched from its own source first: %w", f.Path, errdefs.ErrFailedPrecondition)
		case layout == nil && !o.Wait && f.Size > smallFile:
			return nil, fmt.Errorf("file %q has no chunk digests: %w", f.Path, errdefs.ErrFailedPrecondition)
		}
		seen[f.Digest] = true
		early = early || layout != nil
		var staged int64
		if layout != nil {
			staged = s.Area.Marked(layout.Dir(f.Digest), f.Size, layout.Grid)
		}
		out = append(out, missingFile{file: f, layout: layout, staged: staged})
	}
	if len(out) > 0 && !early && !o.Wait {
		return nil, fmt.Errorf("no file has chunk digests: %w", errdefs.ErrFailedPrecondition)
	}
	return out, nil
}

// register makes all files readable for a table, or none. The way each file is fetched is recorded
// before the file can be read, and does not change while the view shows it.
func (s *Set) register(table digest.Digest, files []missingFile, o Request) error {
	s.exposing.Lock()
	defer s.exposing.Unlock()
	ways := map[digest.Digest]digest.Digest{}
	for _, f := range files {
		ways[f.file.Digest] = identityOf(f.file.Digest, f.layout)
	}
	shown, err := s.DB.PutWays(o.View, table, ways)
	if err != nil {
		return err
	}
	of := recorded{table, transfer.GroupKey(o.Sources)}
	known, err := s.Order(of.table, of.group)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return errClosed
	}
	for _, f := range files {
		if x := s.index.at(f.file.Digest, o.View); x != nil && !x.comesAs(f.layout) {
			return fmt.Errorf("file %q is already being fetched with other chunks or from other sources: %w", f.file.Path, errdefs.ErrFailedPrecondition)
		}
	}
	recording := s.recordings[of]
	if recording == nil {
		recording = newRecording(of, known)
	}
	named := recording.now().ByPath()
	for _, f := range files {
		x := s.index.at(f.file.Digest, o.View)
		if x == nil {
			x = &exposure{
				view: o.View, digest: f.file.Digest, size: f.file.Size, path: f.file.Path,
				tables: map[digest.Digest]string{}, done: make(chan struct{}), waiting: make(chan struct{}),
			}
			x.identity.Store(shown[x.digest])
			if f.layout != nil {
				x.file, x.staged = s.Files.Acquire(x.digest, x.size, x.path, f.layout), f.staged
			}
			recording.begin(x, named)
			s.recordings[of] = recording
		}
		s.index.show(x, table, of.group)
		x.from.Set(table.String(), o.Sources)
		if x.file != nil {
			x.file.Sources.Set(o.View+" "+table.String(), o.Sources)
		}
		x.retry()
	}
	return nil
}

// comesAs reports whether the file is fetched with the same layout from the same sources.
func (x *exposure) comesAs(l *chunkfile.Layout) bool {
	if x.file == nil || l == nil {
		return x.file == nil && l == nil
	}
	return x.file.Layout.ID == l.ID && x.file.Layout.Group == l.Group
}

// reserve reserves space for the exposed files of a table from a group of sources, until they are
// complete, no longer exposed, or hydrated.
func (s *Set) reserve(table digest.Digest, group string) error {
	return s.Reserve(table, group, func() (left int64) {
		files := map[digest.Digest]*exposure{}
		s.mu.Lock()
		for _, x := range s.index.of(table) {
			if x.tables[table] == group {
				files[x.digest] = x
			}
		}
		s.mu.Unlock()
		for _, x := range files {
			left += x.size
			if x.file != nil {
				left -= max(x.file.Present(), x.staged)
			}
		}
		return left
	})
}

// unexpose reverts Expose of a table in a view. The caller holds exposing.
func (s *Set) unexpose(view string, table digest.Digest) {
	var gone []*exposure
	s.mu.Lock()
	for _, x := range s.index.of(table) {
		if x.view != view {
			continue
		}
		x.from.Drop(table.String())
		if x.file != nil {
			x.file.Sources.Drop(view + " " + table.String())
		}
		if s.index.hide(x, table) {
			gone = append(gone, x)
		}
	}
	s.mu.Unlock()
	for _, x := range gone { // which closes files
		x.fail(chunkfile.ErrGone)
		s.stopRecording(x)
		if x.file != nil {
			s.Files.Release(x.file)
		}
	}
}

// Withdraw reverts Expose for those of the given tables, or of all if there are none, that have no reference,
// or whose view has none to them.
func (s *Set) Withdraw(of ...digest.Digest) {
	s.exposing.Lock() // a table is referenced before it is exposed
	defer s.exposing.Unlock()
	type shown struct {
		view  string
		table digest.Digest
	}
	all := map[shown]bool{}
	s.mu.Lock()
	if len(of) == 0 {
		of = slices.Collect(maps.Keys(s.index.tables))
	}
	for _, table := range of {
		for x := range s.index.tables[table] {
			all[shown{x.view, table}] = true
		}
	}
	s.mu.Unlock()
	for e := range all {
		if !s.referred(e.view, e.table) {
			s.unexpose(e.view, e.table)
		}
	}
}

// referred reports whether a table has references, and that of a view is one of them.
func (s *Set) referred(view string, table digest.Digest) bool {
	if view != "" {
		r, err := s.DB.Ref(view)
		return err == nil && r.Table == table
	}
	return len(s.DB.RefsOf(table)) > 0
}

// Wrong replaces the identities of an incomplete file of which readers have seen wrong pages.
func (s *Set) Wrong(f *chunkfile.File) error {
	for _, x := range s.exposuresOf(f.Digest) {
		if x.file == f {
			if err := s.replaceIdentity(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// exposuresOf returns the exposures of a file in all views.
func (s *Set) exposuresOf(d digest.Digest) []*exposure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.in(d)
}

// finish ends an exposure whose file is an object that the view may contain, and adds the object
// to the view.
func (s *Set) finish(x *exposure) {
	if x.view != "" {
		if err := s.Objects.Grant(x.view, x.digest); err != nil {
			s.Log.Error("complete file cannot be read until its model is shown again", "file", x.path, "digest", x.digest, "view", x.view, "err", err)
			x.fail(err)
			return
		}
	}
	s.mu.Lock()
	mine := s.index.at(x.digest, x.view) == x
	if mine {
		s.index.drop(x)
	}
	s.mu.Unlock()
	if !mine {
		return
	}
	close(x.done)
	s.stopRecording(x)
	if x.file == nil {
		return
	}
	if err := x.file.Move(); err != nil {
		s.Log.Warn("staged files stay for a day", "digest", x.digest, "err", err)
	}
	s.Files.Release(x.file)
}
