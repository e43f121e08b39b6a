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

	mu   sync.Mutex // held while the range is fetched; guards what follows
	data []byte     // nil: not in memory
}

// bundles are those that are in memory, the last one used at the end.
type bundles struct {
	mu   sync.Mutex // guards kept; after bundle.mu
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data == nil {
		data := make([]byte, b.length)
		if err := t.fetchRange(ctx, data, b.at); err != nil {
			return err
		}
		b.data = data
	}
	copy(buf, b.data[at-b.at:])
	t.s.bundles.use(b)
	return nil
}

// use puts b at the end, and lets those go that were not used for longest.
func (l *bundles) use(b *bundle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.kept, b); i >= 0 {
		l.kept = slices.Delete(l.kept, i, i+1)
	}
	l.kept = append(l.kept, b)
	for i := 0; len(l.kept) > keptBundles && i < len(l.kept)-1; {
		if old := l.kept[i]; old.mu.TryLock() { // not in use
			old.data = nil
			old.mu.Unlock()
			l.kept = slices.Delete(l.kept, i, i+1)
			continue
		}
		i++
	}
}

// forget lets a bundle with wrong bytes go.
func (l *bundles) forget(b *bundle) {
	b.mu.Lock()
	b.data = nil
	b.mu.Unlock()
}
