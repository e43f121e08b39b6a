package staging

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// checkpointChunks is the number of written chunks that trigger a checkpoint.
const checkpointChunks = 64 // 256 MiB

// Marks of a chunk, see the package comment.
const (
	markAbsent  = 0
	markWritten = 1
	markOld     = 2 // synced in an earlier boot
	markSynced  = 3 // in this boot
)

// openMarks opens the marks, which may be those of an earlier process or an earlier boot.
func (p *Partial) openMarks(same, sameBoot bool) (err error) {
	p.marks, err = p.root.OpenFile(filepath.Join(p.Dir, "marks"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = p.readMarks(same && sameBoot)
	if err == nil && !(same && sameBoot) {
		err = p.writeHead()
	}
	if err != nil {
		return errors.Join(err, p.marks.Close())
	}
	return nil
}

// readMarks loads the marks, and writes them if the boot changes them: before the head, which would make them those
// of this boot. Marks of another length are damaged and count as absent, as in Marked; so do those of bytes that are
// not in their files.
func (p *Partial) readMarks(sameBoot bool) error {
	p.state = make([]byte, p.Chunks())
	info, err := p.marks.Stat()
	if err != nil {
		return err
	}
	stale := info.Size() != int64(len(p.state))
	if !stale {
		if _, err := p.marks.ReadAt(p.state, 0); err != nil && err != io.EOF {
			return err
		}
	}
	isCut := p.isCut()
	for i, m := range p.state {
		if p.state[i] = markIn(m, sameBoot); p.state[i] != markAbsent && isCut(i) {
			p.state[i] = markAbsent
		}
		stale = stale || p.state[i] != m
		if p.state[i] != markAbsent {
			_, n := p.Chunk(i)
			p.have, p.Resumed = p.have+n, true
		}
	}
	if !stale { // another Partial may write marks
		return nil
	}
	if err := p.marks.Truncate(int64(len(p.state))); err != nil {
		return err
	}
	_, err = p.marks.WriteAt(p.state, 0)
	return err
}

// isCut returns a function that reports whether staged files end before a chunk does: they became objects just before
// the process ended, or are damaged.
func (p *Partial) isCut() func(i int) bool {
	sizes := map[string]int64{}
	return func(i int) bool {
		off, n := p.Chunk(i)
		return p.Each(off, n, func(pc Piece, at, from, to int64) error {
			size, ok := sizes[pc.File]
			if !ok {
				info, err := p.root.Lstat(p.Path(pc.File))
				if err != nil {
					return err
				}
				size = info.Size()
				sizes[pc.File] = size
			}
			if size < at+to-from {
				return io.ErrUnexpectedEOF
			}
			return nil
		}) != nil
	}
}

// markIn returns what a mark counts in the same boot, or in a later one.
func markIn(mark byte, sameBoot bool) byte {
	switch {
	case mark > markSynced: // unknown
		return markAbsent
	case sameBoot:
		return mark
	case mark == markWritten:
		return markAbsent
	case mark == markSynced:
		return markOld
	}
	return mark
}

// Has reports whether chunk i is present.
func (p *Partial) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[i] != markAbsent
}

// Synced reports whether chunk i was synced in this boot, maybe by an earlier process: what is read is what was
// written.
func (p *Partial) Synced(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state[i] == markSynced
}

// Present returns the number of present bytes.
func (p *Partial) Present() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have
}

// Mark marks chunk i as written. It may start a checkpoint in the background.
func (p *Partial) Mark(i int) error {
	var err error
	if p.single() {
		err = p.writeHead()
	} else {
		_, err = p.marks.WriteAt([]byte{markWritten}, int64(i))
	}
	if err != nil {
		return err
	}
	due, err := p.note(i)
	if due != nil {
		p.area.work.Go(func() { p.checked(p.checkpoint(due)) })
	}
	return err
}

// note records a written chunk, and returns the chunks of a checkpoint if one is due.
func (p *Partial) note(i int) (due []int, err error) {
	_, n := p.Chunk(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(p.lost, p.failed); err != nil {
		p.failed = nil
		return nil, err
	}
	if p.state[i] == markAbsent {
		p.have += n
	}
	p.state[i] = markWritten
	p.dirty = append(p.dirty, i)
	if len(p.dirty) >= checkpointChunks && !p.syncing && !p.single() {
		due, p.dirty, p.syncing = p.dirty, nil, true
	}
	return due, nil
}

// checkpoint makes written chunks durable, and then marks them as synced.
func (p *Partial) checkpoint(dirty []int) error {
	if err := p.syncChunks(dirty); err != nil {
		return err
	}
	for _, i := range dirty {
		if _, err := p.marks.WriteAt([]byte{markSynced}, int64(i)); err != nil {
			return err
		}
	}
	return unix.Fdatasync(int(p.marks.Fd()))
}

// checked ends a checkpoint.
func (p *Partial) checked(err error) {
	p.mu.Lock()
	p.syncing, p.failed = false, err
	closed := p.closed
	p.mu.Unlock()
	if closed {
		_ = p.marks.Close() // unsynced marks are only treated as written
	}
}

func (p *Partial) syncChunks(chunks []int) error {
	files := map[string]bool{}
	for _, i := range chunks {
		off, n := p.Chunk(i)
		if err := p.Each(off, n, func(pc Piece, _, _, _ int64) error {
			files[pc.File] = true
			return nil
		}); err != nil {
			return err
		}
	}
	for name := range files {
		if err := p.Sync(name); err != nil {
			return err
		}
	}
	return nil
}
