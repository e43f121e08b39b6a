package expose

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// A recording is the order in which the files of a table are first read, while they are incomplete, by users of one
// group of sources. It begins with what is known: a restart or another pull only adds what was not read before.
type recording struct {
	of     recorded
	files  int               // exposures that record in it; guarded by Set.mu
	tracks map[string]*track // by path and identity of the file; guarded by Set.mu

	once    sync.Once
	started chan struct{} // closed by start

	mu      sync.Mutex // guards the following
	order   filetable.Order
	changed bool // since it was saved
}

func newRecording(of recorded, known filetable.Order) *recording {
	return &recording{of: of, tracks: map[string]*track{}, started: make(chan struct{}), order: known}
}

// start records that a reader has got bytes, or can only get them from a download of whole files.
func (r *recording) start() { r.once.Do(func() { close(r.started) }) }

// recorded identifies a recording.
type recorded struct {
	table digest.Digest
	group string
}

// add records the first read of a range.
func (r *recording) add(part filetable.Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = r.order.Add(part) || r.changed
}

// now returns a copy of the order.
func (r *recording) now() filetable.Order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return filetable.Order{Ranges: slices.Clone(r.order.Ranges)}
}

// seen is the parts of a file that were read. Most reads find theirs without a lock.
type seen []atomic.Uint32

func newSeen(parts int) seen { return make(seen, (parts+31)/32) }

// first records that a part is read, and reports whether it was not before.
func (s seen) first(part int) bool {
	word, bit := &s[part/32], uint32(1)<<(part%32)
	return word.Load()&bit == 0 && word.Or(bit)&bit == 0
}

// A track is what a recording has of a file, for all views that show it.
type track struct {
	path   string
	size   int64             // bytes
	layout *chunkfile.Layout // nil: read only when complete
	seen   seen
}

// each calls first for the parts of a range that were not read before.
func (t *track) each(off, n int64, first func(filetable.Range)) {
	if t.layout == nil {
		if t.seen.first(0) {
			first(filetable.Range{Path: t.path, Size: t.size})
		}
		return
	}
	l := t.layout
	for g := l.Find(off); g <= l.Find(min(off+n, t.size)-1); g++ {
		if t.seen.first(g) {
			at, size := l.Part(g)
			first(filetable.Range{Path: t.path, Offset: at, Size: size})
		}
	}
}

// know makes reads of ranges count as recorded.
func (t *track) know(ranges []filetable.Range) {
	for _, r := range ranges {
		t.each(r.Offset, r.Size, func(filetable.Range) {})
	}
}

// record records a read of a file.
func (x *exposure) record(off, n int64) { x.track.each(off, n, x.recording.add) }

// begin makes an exposure record its reads, of which some are known, by path. The caller holds Set.mu.
func (r *recording) begin(x *exposure, known map[string][]filetable.Range) {
	r.files++
	t := &track{path: x.path, size: x.size}
	parts, id := 1, x.path
	if x.file != nil {
		t.layout = x.file.Layout
		parts, id = t.layout.Groups(), id+"\n"+t.layout.ID.String()
	}
	if r.tracks[id] == nil {
		t.seen = newSeen(parts)
		t.know(known[x.path])
		r.tracks[id] = t
	}
	x.recording, x.track = r, r.tracks[id]
}

// recordingOf returns the recording of a table.
func (s *Set) recordingOf(of recorded) *recording {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordings[of]
}

// stopRecording ends the recording of an exposure that has ended, and saves the order with that of the last one.
func (s *Set) stopRecording(x *exposure) {
	s.mu.Lock()
	r := x.recording
	r.files--
	over := r.files == 0
	if over {
		delete(s.recordings, r.of)
	}
	s.mu.Unlock()
	if over {
		s.save(r)
	}
}

// FirstRead returns a channel that is closed when a user of a group of sources has read of a table, or waits for a
// whole file of it. It is nil if all files of the table are complete.
func (s *Set) FirstRead(table digest.Digest, group string) <-chan struct{} {
	if r := s.recordingOf(recorded{table, group}); r != nil {
		return r.started
	}
	return nil
}

// SaveOrders saves the orders that are being recorded, if they have changed.
func (s *Set) SaveOrders() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.recordings))
	s.mu.Unlock()
	for _, r := range all {
		s.save(r)
	}
}

func (s *Set) save(r *recording) {
	r.mu.Lock()
	changed := r.changed
	r.changed = false
	r.mu.Unlock()
	if !changed {
		return
	}
	if err := s.DB.PutOrder(r.of.table, meta.Order{Sources: r.of.group, Ranges: r.now().Ranges}); err != nil {
		s.Log.Warn("the order in which a model was read is not kept", "table", r.of.table, "err", err)
	}
}

// Order returns the order in which a table is read from a group of sources, as far as known.
func (s *Set) Order(table digest.Digest, group string) (filetable.Order, error) {
	all, err := s.Orders(table)
	return all[group], err
}

// Orders returns the orders in which a table is read, by the group of sources.
func (s *Set) Orders(table digest.Digest) (map[string]filetable.Order, error) {
	orders := map[string]filetable.Order{}
	all, err := s.DB.Orders(table)
	for _, o := range all {
		orders[o.Sources] = filetable.Order{Ranges: o.Ranges}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, r := range s.recordings {
		if of.table == table {
			orders[of.group] = r.now()
		}
	}
	return orders, err
}

// PutOrder replaces the order in which a table is read from a group of sources.
func (s *Set) PutOrder(table digest.Digest, group string, o filetable.Order) error {
	if r := s.recordingOf(recorded{table, group}); r != nil {
		r.mu.Lock()
		r.order = filetable.Order{Ranges: slices.Clone(o.Ranges)}
		r.mu.Unlock()
		known := o.ByPath()
		s.mu.Lock()
		for _, t := range r.tracks {
			t.know(known[t.path])
		}
		s.mu.Unlock()
	}
	return s.DB.PutOrder(table, meta.Order{Sources: group, Ranges: o.Ranges})
}
