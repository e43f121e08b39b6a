package store

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// Small files that lie next to each other in a blob are fetched together: those with at most
// smallRun bytes there, in bundles of at most chunkSize bytes. At most keptBundles are in memory.
const (
	smallRun    = 512 << 10
	keptBundles = 4
)

// A bundle is a range of a blob with several small files.
type bundle struct {
	at, length int64

	mu   sync.Mutex // guards what follows
	data []byte     // nil: not in memory
	way  *way       // nil, or how it comes just now
}

// A way is the fetching of a bundle.
type way struct {
	done  chan struct{} // closed when it has come, or failed to
	boost chan struct{} // closed when somebody waits for it
	hurry sync.Once
}

// bundles are those that are in memory, the last one used at the end.
type bundles struct {
	mu   sync.Mutex // guards kept; before bundle.mu
	kept []*bundle
}

// bundleFiles gives files that are brought by their chunks from one blob their bundles.
func bundleFiles(files []*chunked) {
	small := make([]*chunked, 0, len(files))
	for _, c := range files {
		if _, n := span(c.chunks); n > 0 && n <= smallRun && len(c.groups) == 1 {
			small = append(small, c)
		}
	}
	start := func(c *chunked) int64 { at, _ := span(c.chunks); return at }
	slices.SortFunc(small, func(a, b *chunked) int { return cmp.Compare(start(a), start(b)) })
	for len(small) > 0 {
		b := &bundle{at: start(small[0])}
		n := 0
		for _, c := range small {
			at, length := span(c.chunks)
			end := at + length
			if gap := at - b.at - b.length; gap > maxGap || end-b.at > chunkSize {
				break
			}
			b.length = max(b.length, end-b.at)
			n++
		}
		if n > 1 {
			for _, c := range small[:n] {
				c.bundle = b
			}
		}
		small = small[n:]
	}
}

// read copies the range at of the blob into buf, fetching the bundle if it is not in memory.
func (b *bundle) read(ctx context.Context, t transfer, buf []byte, at int64) error {
	for {
		w, mine := b.claim(buf, at)
		switch {
		case mine:
			return b.fetch(ctx, t, w, buf, at)
		case w == nil:
			return nil
		}
		boost := t.boost
		if t.class != background {
			w.hurryUp()
		} else if closed(boost) {
			w.hurryUp()
			boost = nil
		}
		select {
		case <-w.done:
		case <-boost:
			w.hurryUp()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *way) hurryUp() { w.hurry.Do(func() { close(w.boost) }) }

// fetch brings the bundle, and fills buf.
func (b *bundle) fetch(ctx context.Context, t transfer, w *way, buf []byte, at int64) error {
	asked := t.boost
	t.boost = w.boost
	go func() { // ends with the fetch
		select {
		case <-asked:
			w.hurryUp()
		case <-w.done:
		}
	}()
	data := make([]byte, b.length)
	err := t.fetchRange(ctx, data, b.at)
	b.mu.Lock()
	if b.way = nil; err == nil {
		b.data = data
	}
	b.mu.Unlock()
	close(w.done)
	if err != nil {
		return err
	}
	t.s.bundles.use(b)
	copy(buf, data[at-b.at:])
	return nil
}

// claim fills buf if the bundle is in memory. If not, it says how it comes, and whether the caller is to
// fetch it.
func (b *bundle) claim(buf []byte, at int64) (w *way, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data != nil {
		copy(buf, b.data[at-b.at:])
		return nil, false
	}
	if b.way == nil {
		b.way = &way{done: make(chan struct{}), boost: make(chan struct{})}
		return b.way, true
	}
	return b.way, false
}

// use puts b at the end, and lets those go that were not used for longest.
func (l *bundles) use(b *bundle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.kept, b); i >= 0 {
		l.kept = slices.Delete(l.kept, i, i+1)
	}
	l.kept = append(l.kept, b)
	for len(l.kept) > keptBundles {
		l.forget(l.kept[0])
		l.kept = l.kept[1:]
	}
}

// forget lets a bundle with wrong bytes go.
func (l *bundles) forget(b *bundle) {
	b.mu.Lock()
	b.data = nil
	b.mu.Unlock()
}
