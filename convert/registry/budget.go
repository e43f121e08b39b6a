package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"
)

// Limits of concurrent resolutions and conversions.
const (
	// requestWeight is the memory of a request that has read nothing large.
	requestWeight = convert.DocumentWeight * convert.SmallDocument // 1 MiB

	// roomTime is how long a request waits for memory. containerd asks again.
	roomTime = 2 * time.Minute

	// roomPause is the Retry-After of a request that gets no memory.
	roomPause = 5 * time.Second
)

// LimitConversions is the name of the limit of memory for conversions.
const LimitConversions = "conversion_memory"

// A budget is memory that requests share. The zero value works.
type budget struct {
	mu     sync.Mutex          // guards what follows
	total  *semaphore.Weighted // guarded by mu
	hosts  map[string]*share   // of registries with a request
	parked int64               // bytes of documents of requests that wait for more memory
}

// A share is the memory of the requests of one registry.
type share struct {
	sem    *semaphore.Weighted
	users  int   // guarded by budget.mu
	parked int64 // see budget.parked; guarded by budget.mu
}

// join returns the total memory and the share of one registry. The caller calls leave.
func (b *budget) join(host string) (total *semaphore.Weighted, s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total == nil {
		b.total, b.hosts = semaphore.NewWeighted(convert.RequestMemory), map[string]*share{}
	}
	if b.hosts[host] == nil {
		b.hosts[host] = &share{sem: semaphore.NewWeighted(convert.HostMemory)}
	}
	s = b.hosts[host]
	s.users++
	return b.total, s
}

func (b *budget) leave(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.hosts[host]; s.users == 1 {
		delete(b.hosts, host)
	} else {
		s.users--
	}
}

// park counts the documents, of n bytes, of a request that waits for more memory after giving back
// its own: the documents stay allocated. Waiting requests may hold as much as working ones. It
// returns a function that ends the waiting, or false if the limit is reached.
func (b *budget) park(s *share, n int64) (done func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.parked+n > convert.HostMemory || b.parked+n > convert.RequestMemory {
		return nil, false
	}
	s.parked, b.parked = s.parked+n, b.parked+n
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.parked, b.parked = s.parked-n, b.parked-n
	}, true
}

// A lease is the memory of a request and of the conversion that it started.
type lease struct {
	budget *budget
	host   string
	total  *semaphore.Weighted
	share  *share

	turn  chan struct{} // holds a value while the following fields change
	held  int64
	users int
}

// room waits for memory for a request to a registry. Operations with the returned context can take
// more. done gives everything back after the last keep.
func (h *Handler) room(ctx context.Context, b *budget, host string) (_ context.Context, done func(), err error) {
	l := &lease{budget: b, host: host, turn: make(chan struct{}, 1), users: 1}
	l.total, l.share = b.join(host)
	if err := l.grow(ctx, requestWeight); err != nil {
		l.drop()
		return nil, nil, err
	}
	ctx = convert.WithRoom(ctx, l.grow)
	return context.WithValue(ctx, leaseKey{}, l), l.drop, nil
}

type leaseKey struct{}

// keep keeps the memory of a context until the returned function is called too.
func keep(ctx context.Context) (done func()) {
	l, _ := ctx.Value(leaseKey{}).(*lease)
	if l == nil {
		return func() {}
	}
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.users++
	return l.drop
}

// rest gives back the memory of a context whose request only waits and has dropped its documents.
func rest(ctx context.Context) {
	l, _ := ctx.Value(leaseKey{}).(*lease)
	if l == nil {
		return
	}
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.users == 1 {
		l.giveBack()
	}
}

// grow takes n bytes more. If they are not available, it gives back what it holds before waiting,
// so that requests do not deadlock. The number of waiting documents is limited (park). A lease
// never exceeds the share of a registry.
func (l *lease) grow(ctx context.Context, n int64) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	n = min(n, convert.HostMemory-l.held)
	if l.share.sem.TryAcquire(n) {
		if l.total.TryAcquire(n) {
			l.held += n
			convert.Reserve(n)
			return nil
		}
		l.share.sem.Release(n)
	}
	unpark, ok := l.budget.park(l.share, max(0, l.held-requestWeight))
	if !ok {
		return l.refusal("")
	}
	defer unpark()
	want := l.held + n
	l.giveBack()
	waiting, cancel := context.WithTimeout(ctx, roomTime)
	defer cancel()
	err := l.share.sem.Acquire(waiting, want)
	if err == nil {
		if err = l.total.Acquire(waiting, want); err != nil {
			l.share.sem.Release(want)
		}
	}
	switch {
	case err == nil:
		l.held = want
		convert.Reserve(want)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return l.refusal(fmt.Sprintf(", for more than %v", roomTime))
}

// refusal returns the error of a request that gets no memory.
func (l *lease) refusal(after string) error {
	return &transfer.RetryAfterError{After: roomPause, Err: &filetable.LimitError{Limit: LimitConversions, Err: fmt.Errorf(
		"other requests use the memory for manifests of %s, or of all registries%s; try again: %w", l.host, after, errdefs.ErrUnavailable)}}
}

func (l *lease) giveBack() {
	if l.held > 0 {
		l.total.Release(l.held)
		l.share.sem.Release(l.held)
		convert.Reserve(-l.held)
		l.held = 0
	}
}

// drop gives everything back when the last user of the lease is done.
func (l *lease) drop() {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.users--; l.users == 0 {
		l.giveBack()
		l.budget.leave(l.host)
	}
}

// count reports an error that is due to a limit.
func (h *Handler) count(err error) {
	if e, ok := errors.AsType[*filetable.LimitError](err); ok && h.Refused != nil {
		h.Refused(e.Limit)
	}
}
