package store

import (
	"context"
	"math"
	"sync"
	"time"
)

// pace slows background transfers down: to a rate, or to a stop.
type pace struct {
	mu     sync.Mutex    // guards what follows
	rate   float64       // bytes a second; 0: as fast as it goes
	budget float64       // bytes that may be read; negative: too many were read
	since  time.Time     // of budget
	paused chan struct{} // nil, or closed when work goes on
	change chan struct{} // nil, or closed when rate changes
}

// paceBurst is for how long unused rate is kept.
const paceBurst = 100 * time.Millisecond

// SetRate limits the transfers that nobody waits for, all together, to a number of bytes a
// second; 0 is no limit.
func (s *Store) SetRate(bytes int64) {
	s.pace.mu.Lock()
	defer s.pace.mu.Unlock()
	s.pace.rate, s.pace.budget, s.pace.since = float64(max(0, bytes)), 0, time.Now()
	if s.pace.change != nil {
		close(s.pace.change)
		s.pace.change = nil
	}
}

// Pause stops the transfers that nobody waits for, until Resume. Readers go on to get what they
// read.
func (s *Store) Pause() {
	s.pace.mu.Lock()
	defer s.pace.mu.Unlock()
	if s.pace.paused == nil {
		s.pace.paused = make(chan struct{})
	}
}

// Resume ends a Pause.
func (s *Store) Resume() {
	s.pace.mu.Lock()
	defer s.pace.mu.Unlock()
	if s.pace.paused != nil {
		close(s.pace.paused)
		s.pace.paused = nil
	}
}

// Paused says whether Pause was called and Resume was not.
func (s *Store) Paused() bool {
	s.pace.mu.Lock()
	defer s.pace.mu.Unlock()
	return s.pace.paused != nil
}

// wait returns when a background transfer may read on, or boost is closed.
func (p *pace) wait(ctx context.Context, boost <-chan struct{}) error {
	for {
		paused, change, d := p.look()
		if paused == nil && d <= 0 {
			return nil
		}
		timer := time.NewTimer(d)
		if paused != nil {
			timer.Reset(math.MaxInt64)
		}
		select {
		case <-timer.C:
		case <-paused:
		case <-change:
		case <-boost:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// look returns what there is to wait for.
func (p *pace) look() (paused, change <-chan struct{}, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		return p.paused, nil, 0
	}
	if p.rate == 0 {
		return nil, nil, 0
	}
	now := time.Now()
	p.budget = min(p.budget+now.Sub(p.since).Seconds()*p.rate, paceBurst.Seconds()*p.rate)
	p.since = now
	if p.budget > 0 {
		return nil, nil, 0
	}
	if p.change == nil {
		p.change = make(chan struct{})
	}
	return nil, p.change, max(time.Millisecond, time.Duration(-p.budget/p.rate*float64(time.Second)))
}

func (p *pace) spend(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget -= float64(n)
}
