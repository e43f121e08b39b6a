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

	mu     sync.Mutex // guards what follows
	data   []byte     // nil: not in memory
	flight *flight    // nil: it is not on its way
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
func (b *bundle) read(ctx context.Context, t xfer, buf []byte, at int64) error {
	for {
		f, mine := b.claim(buf, at, t.class)
		switch {
		case mine:
			return b.fetch(ctx, t, f, buf, at)
		case f == nil:
			return nil
		}
		boost := t.boost
		if closed(boost) || f.class == background && t.class != background {
			f.hurry()
			boost = nil
		}
		select {
		case <-f.done:
		case <-boost:
			f.hurry()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fetch brings the bundle, and fills buf.
func (b *bundle) fetch(ctx context.Context, t xfer, f *flight, buf []byte, at int64) error {
	asked := t.boost
	t.boost = f.boost
	go func() { // ends with the flight
		select {
		case <-asked:
			f.hurry()
		case <-f.done:
		}
	}()
	data := make([]byte, b.length)
	err := t.fetchRange(ctx, data, b.at)
	b.mu.Lock()
	if b.flight = nil; err == nil {
		b.data = data
	}
	b.mu.Unlock()
	f.land(err)
	if err != nil {
		return err
	}
	t.s.bundles.use(b)
	copy(buf, data[at-b.at:])
	return nil
}

// claim fills buf if the bundle is in memory. If not, it returns its flight, and whether that is to be
// flown by the caller.
func (b *bundle) claim(buf []byte, at int64, c class) (f *flight, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.data != nil:
		copy(buf, b.data[at-b.at:])
		return nil, false
	case b.flight != nil:
		return b.flight, false
	}
	b.flight = newFlight(c)
	return b.flight, true
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
