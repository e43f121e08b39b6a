package signature

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// Limits of concurrent checks: each holds a bundle of up to dsse.MaxSize and its payload. A
// registry that hangs can use only half of them.
const (
	maxChecks     = 4
	maxHostChecks = 2
)

// slots are the running checks. The zero value works.
type slots struct {
	mu      sync.Mutex
	hosts   map[string]int // guarded by mu: checks by host
	all     int            // guarded by mu
	changed chan struct{}  // guarded by mu: closed when a check ends
}

// take waits until a check may start, and returns the function that ends it.
func (s *slots) take(ctx context.Context, host string) (done func(), err error) {
	for {
		s.mu.Lock()
		if s.hosts == nil {
			s.hosts, s.changed = map[string]int{}, make(chan struct{})
		}
		if s.all < maxChecks && s.hosts[host] < maxHostChecks {
			s.all++
			s.hosts[host]++
			s.mu.Unlock()
			return func() { s.end(host) }, nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("too many signature checks of %s are running: %w: %w", host, context.Cause(ctx), errdefs.ErrUnavailable)
		}
	}
}

func (s *slots) end(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.hosts[host]--; s.hosts[host] == 0 {
		delete(s.hosts, host)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}
