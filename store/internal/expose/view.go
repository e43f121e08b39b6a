package expose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A View is the set of files that may be read for one reference, by digest. The common view,
// without a name, has all objects: it is for tables that were once complete, whose readers could
// have all of their files. It also has exposures, of their lost files; there the first table decides
// how a file is fetched.
//
// Any other view is a directory of hard links to the objects that its sources provided or may have,
// so pages are cached once for all views. Links are not synced; Present restores them before a
// mount. Views without a reference are the first to be removed, because links keep the space of an
// object.
type View struct {
	s    *Set
	name string
}

// View returns the view of a reference, or the common view for an empty name.
func (v Views) View(name string) View { return View{v.set, name} }

// Dir returns the directory that serves as data-only lower layer: a complete file of the view is at
// the path ObjectName below it.
func (v View) Dir() string {
	if v.name == "" {
		return filepath.Join(v.s.Dir, object.Dir)
	}
	return filepath.Join(v.s.Dir, object.ViewsDir, v.name)
}

// has reports whether an object is in the view.
func (v View) has(d digest.Digest) bool {
	return v.name == "" && v.s.Objects.Has(d) || v.name != "" && v.s.Objects.Granted(v.name, d)
}

// OpenObject opens a complete, verified object for reading. It returns errdefs.ErrNotFound if it is
// not in the view.
func (v View) OpenObject(d digest.Digest) (*os.File, error) {
	if v.name != "" && !v.has(d) {
		return nil, fmt.Errorf("object %s in view %s: %w", d, v.name, errdefs.ErrNotFound)
	}
	return v.s.Objects.Open(d)
}

// Size returns the size in bytes of a readable file, complete or not. It returns
// errdefs.ErrNotFound for any other file.
func (v View) Size(d digest.Digest) (int64, error) {
	if x := v.s.exposure(v.name, d); x != nil {
		return x.size, nil
	}
	if v.name != "" && !v.has(d) {
		return 0, fmt.Errorf("file %s in view %s: %w", d, v.name, errdefs.ErrNotFound)
	}
	return v.s.Objects.Size(d)
}

// LazyFile returns the size in bytes of a readable file, complete or not, and its identity. The
// identity depends on d, the view and the way the file is fetched, because a table can have a wrong
// digest for a file and be removed before that is detected. Bytes read under one identity are never
// used for another. A file keeps its identity when it becomes complete, if all bytes that were read
// are right. LazyFile returns errdefs.ErrNotFound for a file that is not readable.
func (v View) LazyFile(d digest.Digest) (size int64, identity digest.Digest, err error) {
	if x := v.s.exposure(v.name, d); x != nil {
		size, identity = x.size, x.shown()
	} else {
		if size, err = v.Size(d); err != nil {
			return 0, "", err
		}
		identity, err = v.s.DB.Identity(v.name, d)
		if errdefs.IsNotFound(err) {
			identity = d
		} else if err != nil {
			return 0, "", err
		}
	}
	if v.name != "" {
		identity = digest.FromString(v.name + " " + identity.String())
	}
	return size, identity, nil
}

// Files returns the files of a table as shown: sorted by path, without duplicates, every regular
// file with its digest. It returns errdefs.ErrUnavailable if a file is not complete, and
// errdefs.ErrInvalidArgument if layers have different content for one path.
func (v Views) Files(table digest.Digest) ([]filetable.File, error) {
	return v.set.filesOf(table, func(f filetable.File) error {
		if v.set.Objects.Has(f.Digest) {
			return nil
		}
		return notOnNode(f)
	})
}

func notOnNode(f filetable.File) error {
	return fmt.Errorf("file %q (%s) is not on the node: %w", f.Path, f.Digest, errdefs.ErrUnavailable)
}

// Given is Files for sources with these names (transfer.Source): what is private to others is not complete, be it a
// file or a raw blob that another layer hides.
func (v Views) Given(table digest.Digest, names []string) ([]filetable.File, error) {
	t, err := v.set.Table(table)
	if err != nil {
		return nil, err
	}
	for _, b := range t.Blobs {
		if b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone {
			continue
		}
		if o, ok := v.set.Objects.Record(b.Digest); ok && !o.MayHave(names) {
			return nil, fmt.Errorf("blob %s is private, and not from %q: %w", b.Digest, names, errdefs.ErrUnavailable)
		}
	}
	return v.set.filesOf(table, func(f filetable.File) error {
		inline := f.Source != nil && len(f.Source.Inline) > 0
		switch o, ok := v.set.Objects.Record(f.Digest); {
		case !ok:
			return notOnNode(f)
		case f.Size > 0 && !inline && !o.MayHave(names):
			return fmt.Errorf("file %q (%s) is private, and not from %q: %w", f.Path, f.Digest, names, errdefs.ErrUnavailable)
		}
		return nil
	})
}

// Listing is Files without checking that the files are present. It returns errdefs.ErrNotFound for
// an unknown table, and errdefs.ErrUnavailable if some files are unknown because an archive was
// never unpacked.
func (v Views) Listing(table digest.Digest) ([]filetable.File, error) {
	return v.set.filesOf(table, func(filetable.File) error { return nil })
}

// Readable is Files for files that can be read in the view, complete or not.
func (v View) Readable(table digest.Digest) ([]filetable.File, error) {
	return v.s.filesOf(table, func(f filetable.File) error {
		if f.Size == 0 {
			return nil
		}
		if _, err := v.Size(f.Digest); err != nil {
			return fmt.Errorf("file %q (%s) cannot be read: %w: %w", f.Path, f.Digest, err, errdefs.ErrUnavailable)
		}
		return nil
	})
}

// filesOf returns the files of a table after check has accepted every regular file.
func (s *Set) filesOf(table digest.Digest, check func(filetable.File) error) ([]filetable.File, error) {
	t, err := s.Table(table)
	if err != nil {
		return nil, err
	}
	files, err := hydrate.Resolve(s.DB, t)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type != filetable.TypeReg {
			continue
		}
		if err := check(f); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// presented records that a view was complete, when so much had been removed from views (object.Objects.Removals).
type presented struct {
	table    digest.Digest
	removals int64
}

// Present adds to the view of a reference the complete files of its table that its sources may
// have. It creates the directory even if it returns errdefs.ErrNotFound, for an unknown reference
// or table.
func (v Views) Present(view string) error {
	s := v.set
	there, err := s.Objects.MakeView(view)
	if err != nil {
		return err
	}
	ref, err := s.DB.Ref(view)
	if err != nil {
		return err
	}
	now := presented{ref.Table, s.Objects.Removals()}
	s.mu.Lock()
	whole := there && s.presented[view] == now
	s.mu.Unlock()
	if whole { // called for each mount, and a model can have many files
		return nil
	}
	t, err := s.Table(ref.Table)
	if err != nil {
		return err
	}
	var sources []transfer.Source
	for _, name := range ref.Sources {
		sources = append(sources, transfer.Source{Name: name})
	}
	whole, err = s.grantTable(view, t, sources)
	s.mu.Lock()
	defer s.mu.Unlock()
	if whole {
		s.presented[view] = now
	} else {
		delete(s.presented, view)
	}
	return err
}

// grantTable adds to a view the complete files of a table that sources may have, and reports
// whether the view has the whole table.
func (s *Set) grantTable(view string, t *filetable.Table, sources []transfer.Source) (whole bool, err error) {
	if _, err := s.Objects.MakeView(view); err != nil {
		return false, err
	}
	files, err := hydrate.Resolve(s.DB, t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return false, err
	}
	whole = err == nil
	names := transfer.Names(sources)
	var layouts map[digest.Digest]*chunkfile.Layout
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Size == 0 || f.Digest != "" && s.Objects.Granted(view, f.Digest) {
			continue
		}
		own := f.Source != nil && len(f.Source.Inline) > 0
		exposed := f.Digest != "" && s.exposure(view, f.Digest) != nil // added when that ends
		if exposed && s.Objects.Has(f.Digest) {                        // it has failed to end
			s.Arrived(f.Digest, "")
		}
		if f.Digest == "" || exposed ||
			!s.Objects.Has(f.Digest) || !own && !s.Objects.MayHave(f.Digest, names) {
			whole = false
			continue
		}
		if layouts == nil {
			layouts = layoutsOf(t, sources)
		}
		if err := s.grantRead(view, f.Digest, layouts[f.Digest]); err != nil {
			return false, fmt.Errorf("file %q: %w", f.Path, err)
		}
	}
	return whole, nil
}

// layoutsOf returns the layouts of the files of a table that can be read by chunks from sources.
func layoutsOf(t *filetable.Table, sources []transfer.Source) map[digest.Digest]*chunkfile.Layout {
	layouts := map[digest.Digest]*chunkfile.Layout{}
	for _, target := range hydrate.Plan(t, transfer.GroupKey(sources)) {
		for _, f := range target.Files {
			if !f.Layout.Raw() {
				layouts[f.File.Digest] = f.Layout
			}
		}
	}
	return layouts
}

func (s *Set) exposure(view string, d digest.Digest) *exposure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.at(d, view)
}

// Early describes the incomplete files of a table in a view.
type Early struct {
	Whole bool  // has files that can be read only when complete
	Reads int64 // that run: they wait for bytes, or copy them
}

// Early returns the views that show incomplete files of a table.
func (v Views) Early(table digest.Digest) map[string]Early {
	v.set.mu.Lock()
	defer v.set.mu.Unlock()
	all := map[string]Early{}
	for _, x := range v.set.index.of(table) {
		e := all[x.view]
		e.Whole = e.Whole || x.file == nil
		e.Reads += x.reads.Load()
		all[x.view] = e
	}
	return all
}

// AwaitSmall waits for the files of a table in a view that can be read only when complete. Hydrate
// must be running.
func (v Views) AwaitSmall(ctx context.Context, view string, table digest.Digest) error {
	s := v.set
	var whole []*exposure
	s.mu.Lock()
	for _, x := range s.index.of(table) {
		if x.view == view && x.file == nil {
			whole = append(whole, x)
		}
	}
	s.mu.Unlock()
	for _, x := range whole {
		if err := s.await(ctx, x); err != nil {
			return fmt.Errorf("file %q: %w", x.path, err)
		}
	}
	return nil
}

// Notify reports an attempt to fetch a table from a group of sources to its readers: err is nil
// when it starts.
func (s *Set) Notify(table digest.Digest, group string, err error) {
	var waiting []*exposure
	s.mu.Lock()
	for _, x := range s.index.of(table) {
		if x.tables[table] == group {
			waiting = append(waiting, x)
		}
	}
	s.mu.Unlock()
	for _, x := range waiting {
		if err == nil {
			x.retry()
		} else {
			x.fail(err)
		}
	}
}

// ReadAt reads bytes of a file, complete or not, like io.ReaderAt. It waits and returns errors like
// Await.
func (v View) ReadAt(ctx context.Context, d digest.Digest, b []byte, off int64) (int, error) {
	for try := 0; ; try++ {
		f, done, err := v.Await(ctx, d, off, len(b))
		if err != nil {
			return 0, err
		}
		n, err := f.ReadAt(b, off)
		if err == nil || err == io.EOF {
			done(nil)
			return n, err
		}
		if done(err); try > 0 {
			return n, err
		}
	}
}

// Await waits until the n bytes of a file from off on, limited to its end, are present and
// verified: until their chunks are, or the whole file if it has no chunks. It returns an open file
// with these bytes at the same offset; other bytes of it may not be verified. The caller calls done
// after reading, with the error of that: what cannot be read is fetched again for the next Await, unless
// the file is complete.
//
// It returns errdefs.ErrNotFound for a file that is neither complete nor exposed, a *verify.Error
// if no source has the right bytes, the error of the sources if none can be reached, and io.EOF if
// there are no bytes at off.
func (v View) Await(ctx context.Context, d digest.Digest, off int64, n int) (f *os.File, done func(error), err error) {
	s := v.s
	if x := s.exposure(v.name, d); x != nil {
		f, done, err := s.awaitEarly(ctx, x, off, n)
		// If the object arrived from elsewhere, a fetch in progress has failed.
		if err == nil || err == io.EOF || !x.ended() {
			if err != nil && err != io.EOF && ctx.Err() == nil {
				s.Failed.Add(1)
				err = fmt.Errorf("file %q (%s): %w", x.path, d, err)
			}
			return f, done, err
		}
	}
	if f, err = v.OpenObject(d); err != nil {
		return nil, nil, err
	}
	return f, func(error) { f.Close() }, nil
}

func (s *Set) awaitEarly(ctx context.Context, x *exposure, off int64, n int) (f *os.File, done func(error), err error) {
	if off < 0 || off >= x.size {
		return nil, nil, io.EOF
	}
	x.reads.Add(1)
	defer x.reads.Add(-1)
	x.record(off, int64(n))
	if x.file == nil {
		x.recording.start()
		return nil, nil, cmp.Or(s.await(ctx, x), chunkfile.ErrMoved)
	}
	f, done, err = x.file.Await(ctx, off, n)
	x.recording.start()
	if errors.Is(err, transfer.ErrNoRanges) || errors.Is(err, chunkfile.ErrUndecodable) || errors.Is(err, chunkfile.ErrMoved) {
		err = cmp.Or(s.await(ctx, x), chunkfile.ErrMoved)
	}
	return f, done, err
}

// ended reports whether the file is an object in the view.
func (x *exposure) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// await waits until a file is an object, and returns an error if the current attempt fails. It
// makes the transfer urgent.
func (s *Set) await(ctx context.Context, x *exposure) error {
	for {
		x.mu.Lock()
		failed, waiting := x.failed, x.waiting
		x.mu.Unlock()
		switch {
		case x.ended():
			return nil
		case failed != nil:
			return failed
		}
		began := s.Engine.Began()
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

// promote makes the transfer of a file urgent.
func (s *Set) promote(x *exposure) {
	s.mu.Lock()
	var tables []digest.Digest
	for t := range x.tables {
		tables = append(tables, t)
	}
	s.mu.Unlock()
	for _, t := range tables {
		s.Engine.Await(t, x.digest)
	}
}

// shown returns the identity under which the file is read.
func (x *exposure) shown() digest.Digest { return x.identity.Load().(digest.Digest) }

// retry begins another attempt to fetch the file, unless nothing refers to it any more.
func (x *exposure) retry() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed != nil && x.failed != chunkfile.ErrGone {
		x.failed, x.waiting = nil, make(chan struct{})
	}
}

// fail ends the waiting of readers, until the next attempt.
func (x *exposure) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		close(x.waiting)
	}
	x.failed = err
}
