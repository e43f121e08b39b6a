package store

import (
	"context"
	"sync"
)

// buffers are the chunks in memory: a fixed number, made when first needed and let go when
// nothing is fetched.
type buffers struct {
	size   int
	tokens chan struct{}

	mu   sync.Mutex // guards idle
	idle [][]byte
}

func newBuffers(n, size int) *buffers { return &buffers{size: size, tokens: make(chan struct{}, n)} }

func (b *buffers) take(ctx context.Context) ([]byte, error) {
	select {
	case b.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		buf := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return buf, nil
	}
	return make([]byte, b.size), nil
}

func (b *buffers) give(buf []byte) {
	b.mu.Lock()
	if b.idle = append(b.idle, buf); len(b.tokens) == 1 {
		b.idle = nil // the last one out
	}
	b.mu.Unlock()
	<-b.tokens
}
