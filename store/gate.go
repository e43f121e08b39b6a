package store

import (
	"context"
	"slices"
	"sync"
)

// A class says how urgent a transfer is.
type class int

const (
	urgent     class = iota // a reader waits for the bytes
	soon                    // a reader will want them, or somebody waits for the whole model
	background              // nobody waits
	classes
)

// A gate lets a number of transfers run at the same time, the most urgent first. Urgent ones have
// as many places of their own; while there are any, no background transfer begins.
type gate struct {
	size int

	mu      sync.Mutex // guards what follows
	running [classes]int
	waiting [classes][]*ticket
}

// A ticket is somebody's place in a queue.
type ticket struct {
	class class
	ready chan struct{} // closed when it may run
	left  bool          // it has run; guarded by gate.mu
}

func newGate(size int) *gate { return &gate{size: size} }

// enter waits for a place and returns what gives it back. When boost is closed, the one who waits or
// runs is urgent from then on.
func (g *gate) enter(ctx context.Context, c class, boost <-chan struct{}) (leave func(), err error) {
	t := &ticket{class: c, ready: make(chan struct{})}
	g.mu.Lock()
	g.waiting[c] = append(g.waiting[c], t)
	g.dispatch()
	g.mu.Unlock()
	for {
		select {
		case <-t.ready:
			if boost == nil || c == urgent {
				return func() { g.leave(t) }, nil
			}
			left := make(chan struct{})
			go func() { // ends with the transfer
				select {
				case <-boost:
					g.promote(t)
				case <-left:
				}
			}()
			return func() { close(left); g.leave(t) }, nil
		case <-boost:
			boost = nil
			g.promote(t)
		case <-ctx.Done():
			g.cancel(t)
			return nil, ctx.Err()
		}
	}
}

// dispatch lets in who may run. Who calls it holds mu.
func (g *gate) dispatch() {
	for c := urgent; c < classes; c++ {
		for len(g.waiting[c]) > 0 && g.open(c) {
			t := g.waiting[c][0]
			g.waiting[c] = g.waiting[c][1:]
			g.running[c]++
			close(t.ready)
		}
	}
}

// open says whether one more of a class may run.
func (g *gate) open(c class) bool {
	switch c {
	case urgent:
		return g.running[urgent] < g.size
	case background:
		if g.running[urgent]+len(g.waiting[urgent])+g.running[soon]+len(g.waiting[soon]) > 0 {
			return false
		}
	}
	return g.running[soon]+g.running[background] < g.size
}

func (g *gate) leave(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[t.class]--
	t.left = true
	g.dispatch()
}

func (g *gate) promote(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case t.left:
		return
	case g.drop(t):
		g.waiting[urgent] = append(g.waiting[urgent], t)
	default: // it runs
		g.running[t.class]--
		g.running[urgent]++
	}
	t.class = urgent
	g.dispatch()
}

// cancel gives up a ticket, or the place that it got meanwhile.
func (g *gate) cancel(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.drop(t) {
		g.running[t.class]--
	}
	g.dispatch()
}

// drop takes a ticket out of its queue, and says whether it was there.
func (g *gate) drop(t *ticket) bool {
	i := slices.Index(g.waiting[t.class], t)
	if i < 0 {
		return false
	}
	g.waiting[t.class] = slices.Delete(g.waiting[t.class], i, i+1)
	return true
}

// alarm says whether an urgent transfer runs or waits.
func (g *gate) alarm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[urgent]+len(g.waiting[urgent]) > 0
}
