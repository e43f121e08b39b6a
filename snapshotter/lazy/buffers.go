package lazy

import (
	"sync"

	"golang.org/x/sys/unix"
)

// smallRead is up to what size a read uses ordinary memory.
const smallRead = 64 << 10 // 64 KiB

// maxIdle is how many large buffers are kept for the next reads.
const maxIdle = 8 // × 1 MiB

// buffers hands out memory for answers. Large buffers are mapped: one that waits for its
// bytes has no memory behind it.
type buffers struct {
	mu   sync.Mutex
	idle [][]byte
}

// take returns a buffer of at least size bytes, of any content.
func (b *buffers) take(size int) ([]byte, error) {
	if size <= smallRead {
		return make([]byte, max(size, 1)), nil
	}
	b.mu.Lock()
	if k := len(b.idle); k > 0 {
		buf := b.idle[k-1]
		b.idle = b.idle[:k-1]
		b.mu.Unlock()
		return buf, nil
	}
	b.mu.Unlock()
	return unix.Mmap(-1, 0, maxRead, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// put takes a buffer back.
func (b *buffers) put(buf []byte) {
	if len(buf) < maxRead {
		return
	}
	b.mu.Lock()
	if len(b.idle) < maxIdle {
		b.idle = append(b.idle, buf)
		buf = nil
	}
	b.mu.Unlock()
	unmap(buf)
}

// close unmaps what is idle.
func (b *buffers) close() {
	b.mu.Lock()
	idle := b.idle
	b.idle = nil
	b.mu.Unlock()
	for _, buf := range idle {
		unmap(buf)
	}
}

func unmap(buf []byte) {
	if buf == nil {
		return
	}
	if err := unix.Munmap(buf); err != nil {
		panic("lazy: internal error: munmap of a buffer: " + err.Error())
	}
}
