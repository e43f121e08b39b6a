package chunkfile

import (
	"errors"
	"os"

	"github.com/ballast-dev/ballast/store/internal/staging"
)

// A stage is the open partial of a file.
type stage struct {
	p     *staging.Partial
	data  *os.File
	end   func() error // of data
	users int          // guarded by File.mu
	old   bool         // replaced, for existing users only; guarded by File.mu
}

// open opens the staged part, until done.
func (f *File) open() (*stage, error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	f.mu.Lock()
	before := f.generation.before
	f.generation.before = nil
	f.mu.Unlock()
	if before != nil {
		before.writes.Wait() // for writes to the disk
	}
	st, err := f.use(nil)
	if st != nil || err != nil {
		return st, err
	}
	p, err := f.set.Area.Open(f.dir, f.Size, staging.RawPieces(f.Size), f.Layout.Grid())
	if err != nil {
		return nil, err
	}
	data, end, err := p.Data()
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := data.Truncate(f.Size); err != nil { // zeros are holes
		return nil, errors.Join(err, end(), p.Close())
	}
	return f.use(&stage{p: p, data: data, end: end})
}

// use returns the stage with one more user; fresh becomes the stage if there was none.
func (f *File) use(fresh *stage) (_ *stage, err error) {
	f.mu.Lock()
	unused := fresh
	switch {
	case f.Moved():
		err = ErrMoved
	case f.dropped:
		err = ErrGone
	default:
		unused = nil
		if f.stage != nil && f.stage.p.Lost() != nil {
			unused, f.states = f.replace(), nil
		}
		if f.stage == nil {
			f.stage = fresh
		}
		if f.stage != nil {
			f.stage.users++
		}
	}
	st := f.stage
	f.mu.Unlock()
	unused.close()
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (f *File) done(st *stage) {
	f.mu.Lock()
	st.users--
	last := st.users == 0
	old := st.old
	f.mu.Unlock()
	switch {
	case last && old:
		st.close()
	case last && f.Layout.Groups() <= fewGroups:
		f.set.addIdle(f)
	}
}

// closeIdle closes the stage if it has no users.
func (f *File) closeIdle() {
	var unused *stage
	f.mu.Lock()
	if f.stage != nil && f.stage.users == 0 {
		unused = f.replace()
	}
	f.mu.Unlock()
	unused.close()
}

// replace makes the next open create a new stage, and returns the current one if it has no users. The caller
// holds mu.
func (f *File) replace() (unused *stage) {
	st := f.stage
	f.stage = nil
	if st == nil {
		return nil
	}
	if st.old = true; st.users > 0 {
		return nil
	}
	return st
}

// close closes a replaced stage without users, or nil. The caller does not hold File.mu.
func (st *stage) close() {
	if st != nil {
		// Written bytes were synced where needed.
		_, _ = st.end(), st.p.Close()
	}
}

// drop closes the stage of a file that the set no longer has, for good.
func (f *File) drop() {
	f.mu.Lock()
	f.dropped = true
	f.mu.Unlock()
	f.retire()
}

// retire makes the next open create a new stage, whose bytes are verified again.
func (f *File) retire() {
	f.mu.Lock()
	f.states = nil
	unused := f.replace()
	f.mu.Unlock()
	unused.close()
}

// Discard removes the staged bytes, because they are wrong.
func (f *File) Discard() error {
	f.retire()
	return f.set.Area.Remove(f.dir)
}
