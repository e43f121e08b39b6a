// Package offheap provides memory for large transfer buffers outside the Go heap. Freed pieces are
// reused without a garbage collection, and they do not make the heap grow: the peak memory of a
// process is the peak of the pieces in use.
//
// A caller must not use a piece after Put: it can belong to another caller or be unmapped; an
// access then kills the process.
package offheap

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rest is how long unused memory stays mapped after the last Put, so that work that pauses does not
// map it again.
const rest = time.Second

// A Pool hands out pieces of memory of one size. It is safe for concurrent use.
type Pool struct {
	size int

	mu    sync.Mutex // guards what follows
	out   int        // pieces in use
	spare [][]byte
	timer *time.Timer // runs trim
}

// New returns a Pool of pieces of size bytes.
func New(size int) *Pool { return &Pool{size: size} }

// Take returns a piece; its content is undefined.
func (p *Pool) Take() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.spare); n > 0 {
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		p.out++
		return b, nil
	}
	b, err := unix.Mmap(-1, 0, p.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", p.size, err)
	}
	p.out++
	return b, nil
}

// Put returns a piece to the pool.
func (p *Pool) Put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = append(p.spare, b[:p.size])
	if p.out--; p.out > 0 {
		return
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(rest, p.trim)
	} else {
		p.timer.Reset(rest)
	}
}

// trim unmaps the spare memory unless a piece is in use.
func (p *Pool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out > 0 {
		return
	}
	for _, b := range p.spare {
		if err := unix.Munmap(b); err != nil {
			panic("offheap: internal error: munmap: " + err.Error())
		}
	}
	p.spare = nil
}
