package hydrate

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// A rate is the growth over the last rateSamples samples, taken every sampleEvery.
const (
	sampleEvery = time.Second
	rateSamples = 5
)

// Work describes a running hydration.
type Work struct {
	Table   digest.Digest
	Started time.Time
	Total   int64 // bytes
	Done    int64 // bytes present
	Rate    int64 // bytes that arrived per second; 0 if none arrived lately
	Waiting int   // calls of Hydrate that wait for it

	// Ends is when it is canceled unless another call waits for it before, if none does now.
	Ends time.Time
}

// Work returns all running hydrations, oldest first.
func (e *Engine) Work() []Work {
	var out []Work
	var all []*hydration
	e.mu.Lock()
	for _, h := range e.hydrations {
		all = append(all, h)
		out = append(out, Work{Table: h.table, Started: h.started, Waiting: h.waiters, Ends: h.ends})
	}
	e.mu.Unlock()
	for i, h := range all {
		for _, p := range h.progress() {
			out[i].Total += p.Total
			out[i].Done += p.Done
		}
		h.mu.Lock()
		out[i].Rate = h.rate
		h.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Work) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Table, b.Table)) })
	return out
}

// Abandon cancels the hydrations of tables, or all if there are none, that no call waits for. It
// waits for their end and returns their number.
func (e *Engine) Abandon(ctx context.Context, tables ...digest.Digest) (n int, err error) {
	var ending []*hydration
	e.mu.Lock()
	for _, h := range e.hydrations {
		if h.waiters == 0 && (len(tables) == 0 || slices.Contains(tables, h.table)) {
			h.cancel(errAbandoned)
			ending = append(ending, h)
		}
	}
	e.mu.Unlock()
	for _, h := range ending {
		select {
		case <-h.done:
			n++
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
	return n, nil
}

// measure updates the rate of a hydration until it ends.
func (h *hydration) measure() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var last []int64 // bytes that arrived between samples
	before := h.progress()
	for {
		select {
		case <-h.done:
			return
		case <-tick.C:
		}
		now := h.progress()
		last = append(last, arrived(before, now))
		last = last[max(0, len(last)-rateSamples):]
		before = now
		var sum int64
		for _, n := range last {
			sum += n
		}
		h.mu.Lock()
		h.rate = sum / int64(len(last)) * int64(time.Second) / int64(sampleEvery)
		h.mu.Unlock()
	}
}

// arrived returns the number of bytes that arrived between two samples of the progress. The bytes
// with which a target begins were staged before.
func arrived(before, now []Progress) (n int64) {
	for i, p := range now {
		switch {
		case p.State == StatePresent, before[i].State == StateWaiting && p.State != StateComplete:
		default:
			n += max(0, p.Done-before[i].Done)
		}
	}
	return n
}
