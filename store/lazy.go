package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/singleflight"
)

// readBuffers is how many groups of chunks can be on their way for readers that wait, and fileReaders
// how many of them of one file: a registry that hangs must not keep all others' readers waiting.
const (
	readBuffers = 8
	fileReaders = 4
)

// A lazyFile is a file that can be read before it is an object. It is known to the store while a
// table shows it (Expose) or a job brings it.
type lazyFile struct {
	s    *Store
	name digest.Digest
	size int64
	path string // one of its paths, for messages

	// how is nil for a file that can be read only as a whole.
	how *chunked

	done chan struct{} // closed when it is an object

	wanted  singleflight.Group // what readers wait for, by group
	readers chan struct{}      // held by who fetches for a reader that waits

	tables map[digest.Digest]bool // that show it; guarded by Store.mu
	jobs   int                    // that bring it; guarded by Store.mu

	opening sync.Mutex   // held while stage is made; before mu
	writes  sync.RWMutex // held for reading by who writes what is not verified; before mu

	mu       sync.Mutex // guards what follows
	fetchers []transfer.Source
	stage    *staging // nil: not open
	flights  map[int]*flight
	verified map[int]bool // groups that this process has verified
	streams  []stream
	gone     bool          // nothing refers to it any more
	failed   error         // why it could not be brought, until the next attempt
	waiting  chan struct{} // closed when failed is set
}

// A staging is the open partial of a lazy file.
type staging struct {
	p     *partial
	data  *os.File
	users int  // guarded by lazyFile.mu
	old   bool // nobody new uses it; guarded by lazyFile.mu
}

// errMoved says that a lazy file has become an object.
var errMoved = errors.New("the file is an object now")

// chunkedDir returns where a file is staged that is brought by chunks, below the root.
func chunkedDir(name, recipe digest.Digest) string {
	return filepath.Join(partialDir, "chunked-"+digest.FromString(name.String()+recipe.String()).Encoded())
}

// acquire opens the partial of the file, until release.
func (l *lazyFile) acquire() (*staging, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	st, err := l.use(nil)
	if st != nil || err != nil {
		return st, err
	}
	// Not while mu is held: a collection may have to end first.
	p, err := l.s.openPartial(chunkedDir(l.name, l.how.recipe), l.size, rawPieces(l.size), l.how.grid())
	if err != nil {
		return nil, err
	}
	data, err := l.s.root.OpenFile(p.path("data"), os.O_CREATE|os.O_RDWR, objectMode)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	l.doubtStaged(p)
	return l.use(&staging{p: p, data: data})
}

// doubtStaged makes what an earlier process has staged count only when it was verified again: readers
// get it before the digest of the file is compared.
func (l *lazyFile) doubtStaged(p *partial) {
	if l.how.unverified {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range p.chunks() {
		if !l.verified[g] {
			p.setDoubt(g, true)
		}
	}
}

// use returns the staging with one more user. It is fresh if there was none.
func (l *lazyFile) use(fresh *staging) (*staging, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moved() {
		if fresh != nil {
			fresh.old = true
			l.closeUnused(fresh)
		}
		return nil, errMoved
	}
	if l.stage == nil {
		l.stage = fresh
	}
	if l.stage != nil {
		l.stage.users++
	}
	return l.stage, nil
}

// errGone says that nothing refers to a lazy file any more.
var errGone = fmt.Errorf("nothing refers to it any more: %w", errdefs.ErrNotFound)

func (l *lazyFile) isGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// leave says that nothing needs the file any more but who uses it now.
func (l *lazyFile) leave() {
	if l.how != nil && l.how.unverified {
		l.writes.Lock()
		defer l.writes.Unlock()
	}
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	l.retire()
}

// moved says whether the file is an object.
func (l *lazyFile) moved() bool { return closed(l.done) }

// fewGroups is how many groups a file has at most that is opened anew for each read. There can be
// very many such files.
const fewGroups = 8

func (l *lazyFile) release(st *staging) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st.users--
	if st.users == 0 && st == l.stage && (l.gone || len(l.how.groups) <= fewGroups) {
		l.stage, st.old = nil, true
	}
	l.closeUnused(st)
}

// closeUnused closes what nobody uses. Who calls it holds mu.
func (l *lazyFile) closeUnused(st *staging) {
	if st.users == 0 && st.old {
		// What was written is synced by whoever needs that, through files of its own.
		_, _ = st.p.close(), st.data.Close()
	}
}

// present returns how many bytes are there, as far as the file is open.
func (l *lazyFile) present() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moved() {
		return l.size
	}
	if l.stage == nil {
		return 0
	}
	return l.stage.p.present()
}

// retire makes the next acquire begin anew.
func (l *lazyFile) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if st := l.stage; st != nil {
		l.stage, st.old = nil, true
		l.closeUnused(st)
	}
}

// transfer returns how the file's ranges come from outside.
func (l *lazyFile) transfer(c class) xfer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return xfer{s: l.s, blob: l.how.from.Digest, size: l.how.from.Size, fetchers: l.fetchers, received: &l.s.counts.received, class: c}
}

// bring makes group g present, using buf, which is a whole buffer: who has claimed a group never
// waits for one. If fill, buf holds the group afterwards.
func (l *lazyFile) bring(ctx context.Context, st *staging, t xfer, g int, buf []byte, fill bool) error {
	for try := 0; ; try++ {
		f, mine := l.flight(st.p, g, t.class)
		switch {
		case f == nil:
			if !fill {
				return nil
			}
			off, n := st.p.chunk(g)
			_, err := st.data.ReadAt(buf[:n], off)
			return err
		case mine:
			if closed(t.boost) { // since the class of t was looked at
				f.hurry()
			}
			t.boost = f.boost
			err := l.land(ctx, st, t, g, buf)
			l.mu.Lock()
			delete(l.flights, g)
			l.mu.Unlock()
			f.land(err)
			return err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		// Another's sources may be worse than ours.
		if f.err != nil && !errors.Is(f.err, context.Canceled) && try > 0 {
			return f.err
		}
	}
}

// flight returns the flight of group g, and whether it is to be flown by the caller; nil if the
// group is there.
func (l *lazyFile) flight(p *partial, g int, c class) (f *flight, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.has(g) {
		return nil, false
	}
	if f := l.flights[g]; f != nil {
		if c == urgent {
			f.hurry()
		}
		return f, false
	}
	if l.flights == nil {
		l.flights = map[int]*flight{}
	}
	f = newFlight(c)
	l.flights[g] = f
	return f, true
}

// hurry says that somebody waits for all that is on its way.
func (l *lazyFile) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.flights {
		f.hurry()
	}
}

// land fetches group g and stages it.
func (l *lazyFile) land(ctx context.Context, st *staging, t xfer, g int, buf []byte) error {
	off, n := st.p.chunk(g)
	if st.p.doubted(g) {
		if _, err := st.data.ReadAt(buf[:n], off); err == nil && l.how.right(g, buf[:n]) {
			st.p.setDoubt(g, false)
			l.know(g)
			return nil
		}
	}
	found, err := l.how.fetch(ctx, t, g, buf[:n])
	if err == nil {
		err = l.stageGroup(st, g, buf[:n], found)
	}
	if err == nil {
		l.know(g)
	}
	return err
}

// know says that group g was verified.
func (l *lazyFile) know(g int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.verified == nil {
		l.verified = map[int]bool{}
	}
	l.verified[g] = true
}

// want makes group g present on behalf of a reader. The work goes on when ctx ends: what is on
// its way is of use to the next one, or to the same reader, whom a signal made ask again.
func (l *lazyFile) want(ctx context.Context, g int) error {
	got := l.wanted.DoChan(strconv.Itoa(g), func() (any, error) {
		return nil, l.s.do(func() error { return l.readNow(g) })
	})
	select {
	case r := <-got:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readNow is read for a reader that waits.
func (l *lazyFile) readNow(g int) error {
	select {
	case l.readers <- struct{}{}:
		defer func() { <-l.readers }()
	case <-l.s.ctx.Done():
		return l.s.ctx.Err()
	}
	return l.read(g, urgent, l.s.readBuffers)
}

// read makes group g present with a buffer of its own.
func (l *lazyFile) read(g int, c class, from *buffers) error {
	ctx := l.s.ctx
	buf, err := from.take(ctx)
	if err != nil {
		return err
	}
	defer from.give(buf)
	st, err := l.acquire()
	if err != nil {
		return err
	}
	defer l.release(st)
	return l.bring(ctx, st, l.transfer(c), g, buf, false)
}

// do runs f, which the end of the store waits for.
func (s *Store) do(f func() error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	return f()
}

// spawn runs f until the end of the store, unless that has come.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

func (s *Store) lazyFile(d digest.Digest) *lazyFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lazy[d]
}

// ReadAt reads bytes of a file, complete or not, as io.ReaderAt does. It waits until the bytes
// are there and verified: until their chunk is, or the whole file if it has no chunks.
//
// It returns errdefs.ErrNotFound for a file that is neither complete nor exposed, a *verify.Error
// if no source has the right bytes, and the error of the sources if none of them can be reached.
func (s *Store) ReadAt(ctx context.Context, d digest.Digest, b []byte, off int64) (int, error) {
	if l := s.lazyFile(d); l != nil {
		n, err := l.readAt(ctx, b, off)
		// What was on its way when the object came from elsewhere has failed.
		if err == nil || err == io.EOF || !l.moved() {
			if err != nil && err != io.EOF && ctx.Err() == nil {
				s.counts.failed.Add(1)
				err = fmt.Errorf("file %q (%s): %w", l.path, d, err)
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

func (l *lazyFile) readAt(ctx context.Context, b []byte, off int64) (int, error) {
	if off < 0 || off >= l.size {
		return 0, io.EOF
	}
	if l.how == nil {
		return 0, cmp.Or(l.await(ctx), errMoved)
	}
	st, err := l.acquire()
	if err != nil {
		return 0, err
	}
	defer l.release(st)
	short := int64(len(b)) > l.size-off
	b = b[:min(int64(len(b)), l.size-off)]
	if len(b) == 0 {
		return 0, nil
	}
	first, last := l.how.find(off), l.how.find(off+int64(len(b))-1)
	l.ahead(st, first, last)
	for g := first; g <= last; g++ {
		if st.p.has(g) {
			continue
		}
		err := l.want(ctx, g)
		if errors.Is(err, errNoRanges) {
			err = cmp.Or(l.await(ctx), errMoved)
		}
		if err == nil && !st.p.has(g) { // what is staged was thrown away meanwhile
			err = fmt.Errorf("bytes at %d: %w", off, errdefs.ErrUnavailable)
		}
		if err != nil {
			return 0, err
		}
	}
	n, err := st.data.ReadAt(b, off)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// await returns nil when the file is an object, or why it does not become one for now.
func (l *lazyFile) await(ctx context.Context) error {
	l.mu.Lock()
	failed, waiting := l.failed, l.waiting
	l.mu.Unlock()
	if l.moved() {
		return nil
	}
	if failed != nil {
		return failed
	}
	select {
	case <-l.done:
		return nil
	case <-waiting:
		return l.await(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle says how an attempt to bring the file went: err is nil when one begins.
func (l *lazyFile) settle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && l.failed != nil:
		l.failed, l.waiting = nil, make(chan struct{})
	case err != nil && l.failed == nil:
		l.failed = err
		close(l.waiting)
	}
}
