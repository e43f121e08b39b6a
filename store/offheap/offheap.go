// Package offheap has memory for the large buffers of bytes on their way. The garbage collector does not see it, so
// it neither waits for a collection to be used again nor makes the heap grow: what a process takes at most is what is
// handed out at most.
//
// Memory that was put back must not be touched any more: it can be another's, or be gone, which ends the process.
package offheap

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rest is how long memory is kept when nobody has any. Work that stops and goes on is not to map it anew.
const rest = time.Second

// A Pool hands out pieces of memory of one size. It is safe for concurrent use.
type Pool struct {
	size int

	mu    sync.Mutex // guards what follows
	out   int        // pieces that are handed out
	spare [][]byte
	timer *time.Timer // of trim
}

// New returns a Pool of pieces of size bytes.
func New(size int) *Pool { return &Pool{size: size} }

// Take returns a piece with any content.
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

// Put takes a piece back.
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

// trim gives memory back to the system unless somebody has some.
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
