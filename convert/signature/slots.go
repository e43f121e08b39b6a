package signature

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Limits of concurrent checks: each holds a bundle of up to dsse.MaxSize and its payload.
const (
	maxChecks     = 6 // half of them, and more, are for hosts that have none
	maxHostChecks = 2
	maxStrangers  = 5 // of hosts that did not answer the last time, or were never asked

	// patience is how long a check of such a host goes on while a host waits that has no check.
	patience = 10 * time.Second

	// maxKnown limits the recorded hosts: strangers choose names.
	maxKnown = 4096
)

// errPatience is the cause of the end of a check that others wait for.
var errPatience = errors.New("its registry is slow, and others wait")

// slots are the running checks. The zero value works.
type slots struct {
	mu      sync.Mutex
	running []*slot         // guarded by mu: oldest first
	known   map[string]bool // guarded by mu: hosts that answered the last time
	changed chan struct{}   // guarded by mu: closed when a check ends
}

// A slot is the right of one check to run, for registries at a host.
type slot struct {
	of    *slots
	ctx   context.Context // of the check
	end   context.CancelCauseFunc
	host  string
	since time.Time
}

// take waits until a check may start.
func (s *slots) take(ctx context.Context, host string) (*slot, error) {
	for {
		s.mu.Lock()
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		own, strangers := s.count(host)
		if own < maxHostChecks && len(s.running) < maxChecks &&
			(own == 0 || len(s.running) < maxChecks/2) && (s.known[host] || strangers < maxStrangers) {
			sl := &slot{of: s, host: host, since: time.Now()}
			sl.ctx, sl.end = context.WithCancelCause(ctx)
			s.running = append(s.running, sl)
			s.mu.Unlock()
			return sl, nil
		}
		var slow <-chan time.Time
		if own == 0 {
			slow = s.hurry()
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-slow:
		case <-ctx.Done():
			return nil, fmt.Errorf("too many signature checks of %s are running: %w: %w", host, context.Cause(ctx), errdefs.ErrUnavailable)
		}
	}
}

// count returns the number of checks of a host, and of all hosts that are not known. The caller holds mu.
func (s *slots) count(host string) (own, strangers int) {
	for _, sl := range s.running {
		if sl.host == host {
			own++
		}
		if !s.known[sl.host] {
			strangers++
		}
	}
	return own, strangers
}

// hurry ends the oldest check of a host that is not known, if it has run for long, or returns when it will have. The
// caller holds mu.
func (s *slots) hurry() <-chan time.Time {
	for _, sl := range s.running {
		if s.known[sl.host] || sl.ctx.Err() != nil {
			continue
		}
		left := patience - time.Since(sl.since)
		if left > 0 {
			return time.After(left)
		}
		sl.end(errPatience)
		break // the next waits for its end first
	}
	return nil
}

// done ends a check.
func (sl *slot) done() {
	s := sl.of
	sl.end(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(r *slot) bool { return r == sl })
	close(s.changed)
	s.changed = make(chan struct{})
}

// answered records whether the registry of a host has answered a check.
func (s *slots) answered(host string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.known, host); !yes {
		return
	}
	for h := range s.known {
		if len(s.known) < maxKnown {
			break
		}
		delete(s.known, h)
	}
	if s.known == nil {
		s.known = map[string]bool{}
	}
	s.known[host] = true
}
