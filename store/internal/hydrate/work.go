package hydrate

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A rate is the growth over the last rateSamples samples, taken every sampleEvery.
const (
	sampleEvery = time.Second
	rateSamples = 5
)

// ProgressEvery is the interval of Progress.
const ProgressEvery = 200 * time.Millisecond

// Progress is the progress of one target of a hydration.
type Progress struct {
	Blob  digest.Digest `json:"digest"`
	Name  string        `json:"file,omitempty"` // path of a file in it, for messages
	Total int64         `json:"total"`          // bytes
	Done  int64         `json:"completed"`      // bytes present
	State string        `json:"status"`         // "waiting", "downloading", "verifying", "complete", "present"

	// Registries and Mirrors are bytes that came from there for this target, also for other tables that need it.
	Registries int64 `json:"registries,omitempty"`
	Mirrors    int64 `json:"mirrors,omitempty"`
}

// Work describes a running hydration.
type Work struct {
	Table   digest.Digest
	Started time.Time
	Total   int64 // bytes
	Done    int64 // bytes present
	Rate    int64 // bytes that arrived per second; 0 if none arrived lately
	Waiting int   // calls of Hydrate that wait for it
	Ordered bool  // begins with what a recorded order has

	// Limit is what most of the work waited for lately; empty if nothing ran.
	Limit Limit

	// Ends is when it is canceled unless another call waits for it before, if none does now.
	Ends time.Time
}

// A Limit is what limits the rate of a hydration.
type Limit string

// The limits.
const (
	LimitNetwork Limit = "network" // registries, and what is between
	LimitRate    Limit = "rate"    // Scheduler.SetRate, or Options.Limiter
	LimitHash    Limit = "hash"    // processors: hashing and unpacking
	LimitDisk    Limit = "disk"
)

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
		out[i].Rate, out[i].Limit, out[i].Ordered = h.rate, h.slowest, h.ordered
		h.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Work) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Table, b.Table)) })
	return out
}

// busyRate is the rate in bytes a second from which an engine is busy: anybody can keep a slower transfer going for
// ever.
const busyRate = 1 << 20

// Busy reports whether bytes arrive at a rate that counts, or a hydration has just begun.
func (e *Engine) Busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var sum int64
	for _, h := range e.hydrations {
		h.mu.Lock()
		sum += h.rate
		h.mu.Unlock()
		if sum >= busyRate || time.Since(h.started) < rateSamples*sampleEvery {
			return true
		}
	}
	return false
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

// measure updates the rate of a hydration, and what limits it, until it ends.
func (h *hydration) measure() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var last []int64 // bytes that arrived between samples
	before := h.progress()
	spent, _ := h.spent(nil)
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
		var ran []transfer.Spent
		spent, ran = h.spent(spent)
		h.mu.Lock()
		h.rate = sum / int64(len(last)) * int64(time.Second) / int64(sampleEvery)
		h.slowest = slowest(ran)
		h.mu.Unlock()
	}
}

// spent returns the time spent on each fetch, and, for those that ran since before, the time since then.
func (h *hydration) spent(before map[*blobFetch]transfer.Spent) (now map[*blobFetch]transfer.Spent, ran []transfer.Spent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now = map[*blobFetch]transfer.Spent{}
	for _, b := range h.fetches {
		if b == nil {
			continue
		}
		s := b.flow.Spent()
		if now[b] = s; s == before[b] {
			continue
		}
		for i, d := range before[b] {
			s[i] -= d
		}
		ran = append(ran, s)
	}
	return now, ran
}

// slowest returns the limit of fetches that spent this time during sampleEvery. Goroutines wait for the one that
// hashes in order, so its time counts as a limit when there is nearly no other.
func slowest(ran []transfer.Spent) Limit {
	var all transfer.Spent
	for _, s := range ran {
		for i, d := range s {
			all[i] += d
		}
	}
	network, hash, disk := all[transfer.Network], all[transfer.Hash]+all[transfer.InOrder], all[transfer.Disk]
	switch {
	case len(ran) == 0:
		return ""
	case all[transfer.InOrder] >= time.Duration(len(ran))*sampleEvery*8/10, hash > max(network, disk):
		return LimitHash
	case disk > network:
		return LimitDisk
	case all[transfer.Paced] > network/2:
		return LimitRate
	}
	return LimitNetwork
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
