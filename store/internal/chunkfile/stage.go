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
	users int  // guarded by File.mu
	old   bool // replaced, for existing users only; guarded by File.mu
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
	data, err := f.set.Root.OpenFile(p.Path("data"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := data.Truncate(f.Size); err != nil { // zeros are holes
		return nil, errors.Join(err, data.Close(), p.Close())
	}
	return f.use(&stage{p: p, data: data})
}

// use returns the stage with one more user; fresh becomes the stage if there was none.
func (f *File) use(fresh *stage) (*stage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Moved() {
		if fresh != nil {
			fresh.old = true
			fresh.closeUnused()
		}
		return nil, ErrMoved
	}
	if f.stage != nil && f.stage.p.Lost() != nil {
		f.stage.old, f.stage, f.verified = true, nil, nil
	}
	if f.stage == nil {
		f.stage = fresh
	}
	if f.stage != nil {
		f.stage.users++
	}
	return f.stage, nil
}

func (f *File) done(st *stage) {
	f.mu.Lock()
	st.users--
	rests := st.users == 0 && st == f.stage && f.Layout.Groups() <= fewGroups
	st.closeUnused()
	f.mu.Unlock()
	if rests {
		f.set.addIdle(f)
	}
}

// closeIdle closes the stage if it has no users.
func (f *File) closeIdle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if st := f.stage; st != nil && st.users == 0 {
		f.stage, st.old = nil, true
		st.closeUnused()
	}
}

// closeUnused closes a replaced stage without users. The caller holds File.mu.
func (st *stage) closeUnused() {
	if st.users == 0 && st.old {
		// Written bytes are synced where needed, through other descriptors.
		_, _ = st.p.Close(), st.data.Close()
	}
}

// retire makes the next open create a new stage.
func (f *File) retire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verified = nil
	if st := f.stage; st != nil {
		f.stage, st.old = nil, true
		st.closeUnused()
	}
}

// Discard removes the staged bytes, because they are wrong.
func (f *File) Discard() error {
	f.retire()
	return f.set.Area.Remove(f.dir)
}
