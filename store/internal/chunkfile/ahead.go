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

// A stream is a sequential reader, of the groups of a file or of the parts of a Sequence.
type stream struct {
	head   int // the last one that was read
	window int // how many to fetch ahead
}

// streams are the readers that are tracked, the last one that read last.
type streams []stream

// read records a read from first to last, and returns whether it is of a reader that is tracked, and how many after
// last are to be fetched ahead. A reader is at most back before, and forth after, what it has read: its reads arrive
// in any order, as many at a time as the kernel reads ahead.
func (all *streams) read(first, last, back, forth int) (tracked bool, ahead int) {
	i := slices.IndexFunc(*all, func(s stream) bool { return first >= s.head-back && first <= s.head+forth })
	s := stream{head: last}
	if i >= 0 {
		s = (*all)[i]
		*all = slices.Delete(*all, i, i+1)
		if last > s.head {
			s.head, s.window = last, min(max(2, 2*s.window), maxAhead)
			ahead = s.window
		}
	}
	*all = append(*all, s)
	if len(*all) > maxStreams {
		*all = slices.Delete(*all, 0, 1)
	}
	return i >= 0, ahead
}

// recordRead records a read, and starts read-ahead for readers that are sequential, or follow a Sequence.
func (f *File) recordRead(st *stage, first, last int) {
	if q := f.sequence.Load(); q != nil && q.read(f, first, last) {
		return
	}
	var todo []int
	f.mu.Lock()
	_, ahead := f.streams.read(first, last, 2, 1)
	for g := last + 1; g <= last+ahead && g < f.Layout.Groups(); g++ {
		if f.calls[g] == nil && !f.reading[g] && !f.hasLocked(st, g, false) {
			f.reading[g] = true
			todo = append(todo, g)
		}
	}
	f.mu.Unlock()
	if ahead > 0 {
		f.set.readerActive()
	}
	for _, g := range todo {
		if !f.spawn(func(ctx context.Context) { f.readAhead(ctx, st, g) }, st) {
			f.endReadAhead(g)
		}
	}
}

// readAhead makes group g present. An error is reported when the group is read.
func (f *File) readAhead(ctx context.Context, st *stage, g int) {
	defer f.endReadAhead(g)
	_ = f.withBuffer(ctx, f.set.Scheduler.NewFlow(transfer.Soon), func(sl *transfer.Slot) error { return f.makeIn(st, sl, g) })
}

// endReadAhead ends the read-ahead of group g.
func (f *File) endReadAhead(g int) {
	f.mu.Lock()
	delete(f.reading, g)
	f.mu.Unlock()
}
