package store

import "slices"

// maxAhead is how many groups are fetched ahead of a reader, and maxStreams how many readers of a
// file are followed.
const (
	maxAhead   = 12 // 48 MiB
	maxStreams = 8
)

// A stream is a reader that goes forward.
type stream struct {
	head   int // the last group that was read
	window int // groups to fetch ahead
}

// ahead takes note of a read, and fetches what a reader that goes forward will want. Reads of one
// reader come in any order, as many at a time as the kernel reads ahead.
func (l *lazyFile) ahead(st *staging, first, last int) {
	l.mu.Lock()
	i := slices.IndexFunc(l.streams, func(s stream) bool { return first >= s.head-2 && first <= s.head+1 })
	if i < 0 {
		l.streams = append(l.streams, stream{head: last})
		if len(l.streams) > maxStreams {
			l.streams = slices.Delete(l.streams, 0, 1)
		}
		l.mu.Unlock()
		return
	}
	s := l.streams[i]
	var todo []int
	if last > s.head {
		s.head, s.window = last, min(max(2, 2*s.window), maxAhead)
		for g := last + 1; g <= last+s.window && g < len(l.how.groups); g++ {
			if l.flights[g] == nil && !st.p.has(g) {
				todo = append(todo, g)
			}
		}
	}
	l.streams = append(slices.Delete(l.streams, i, i+1), s)
	l.mu.Unlock()
	for _, g := range todo {
		// An error shows when somebody reads it.
		l.s.spawn(func() { _ = l.read(g, soon, l.s.aheadBuffers) })
	}
}
