package chunkfile

import (
	"context"
	"slices"

	"github.com/ballast-dev/ballast/store/transfer"
)

// maxAhead limits the groups fetched ahead of a reader, and maxStreams the readers of a file that
// are tracked.
const (
	maxAhead   = 12 // 48 MiB
	maxStreams = 8
)

// A stream is a sequential reader.
type stream struct {
	head   int // the last group that was read
	window int // groups to fetch ahead
}

// recordRead records a read, and starts read-ahead for sequential readers. The reads of one reader
// arrive in any order, as many at a time as the kernel reads ahead.
func (f *File) recordRead(st *stage, first, last int) {
	f.mu.Lock()
	i := slices.IndexFunc(f.streams, func(s stream) bool { return first >= s.head-2 && first <= s.head+1 })
	if i < 0 {
		f.streams = append(f.streams, stream{head: last})
		if len(f.streams) > maxStreams {
			f.streams = slices.Delete(f.streams, 0, 1)
		}
		f.mu.Unlock()
		return
	}
	s := f.streams[i]
	var todo []int
	if last > s.head {
		f.set.readerActive()
		s.head, s.window = last, min(max(2, 2*s.window), maxAhead)
		for g := last + 1; g <= last+s.window && g < f.Layout.Groups(); g++ {
			if f.calls[g] == nil && !f.reading[g] && !f.hasLocked(st, g) {
				f.reading[g] = true
				todo = append(todo, g)
			}
		}
	}
	f.streams = append(slices.Delete(f.streams, i, i+1), s)
	f.mu.Unlock()
	for _, g := range todo {
		if !f.spawn(func(ctx context.Context) { f.readAhead(ctx, st, g) }, st) {
			f.endReadAhead(g)
		}
	}
}

// readAhead makes group g present. An error is reported when the group is read.
func (f *File) readAhead(ctx context.Context, st *stage, g int) {
	defer f.endReadAhead(g)
	_ = f.withBuffer(ctx, f.set.Scheduler.NewFlow(transfer.Soon), func(sl *transfer.Slot) error {
		c, mine := f.claim(st, g, sl.Flow())
		if !mine {
			return nil
		}
		err := f.fetchGroup(st, sl, g, c, f.transfer(c.flow).Get)
		f.endCall(c, g, err)
		return err
	})
}

// endReadAhead ends the read-ahead of group g.
func (f *File) endReadAhead(g int) {
	f.mu.Lock()
	delete(f.reading, g)
	f.mu.Unlock()
}
