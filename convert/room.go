package convert

import (
	"context"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
)

// roomKey is the context key of a Room.
type roomKey struct{}

// A Room reserves n bytes of memory that are about to be used, and waits until they are available. It
// returns errdefs.ErrUnavailable after too long a wait. The owner of the Room releases the memory.
type Room func(ctx context.Context, n int64) error

// WithRoom returns a context in which documents are read only after r has reserved memory for them.
func WithRoom(ctx context.Context, r Room) context.Context {
	return context.WithValue(ctx, roomKey{}, r)
}

const (
	// SmallDocument is the largest document read without reserving memory, in bytes: nearly all
	// manifests and configs are smaller, and a connection takes as much.
	SmallDocument = 64 << 10 // 64 KiB

	// DocumentWeight is the memory per byte of a manifest, in bytes, until it is an image: 7.9 MB
	// with 38,000 layers take 110 MiB as objects, model, table and config together.
	DocumentWeight = 16
)

// The memory of everything that strangers can have a node resolve and convert, in bytes.
const (
	// HostMemory is for the requests of one registry, so that a stalling registry delays only its
	// own. It is enough for the largest manifest, or for 128 small ones.
	HostMemory = DocumentWeight * MaxManifestSize // 128 MiB

	// RequestMemory is for all requests. When one registry uses its full share, there is room
	// for manifests of 4 MiB of others. Entries of indexes have as much again.
	RequestMemory = HostMemory + HostMemory/2 // 192 MiB

	// WindowMemory is for large windows of compressed files: the largest, or several smaller ones.
	WindowMemory = filetable.MaxWindow
)

var reserved struct {
	mu     sync.Mutex
	n      int64
	change func(n int64) // nil: nobody is told
}

// Reserve counts n bytes of the limits above as in use, or as free if n is negative.
func Reserve(n int64) {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if reserved.n += n; reserved.change != nil {
		reserved.change(reserved.n)
	}
}

// OnReserve calls f with the bytes in use, now and after each change, one call at a time.
func OnReserve(f func(n int64)) {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	reserved.change = f
	f(reserved.n)
}

// MakeRoom reserves memory for a document of n bytes, unless it is small.
func MakeRoom(ctx context.Context, n int64) error {
	if n <= SmallDocument {
		return nil
	}
	return TakeMemory(ctx, DocumentWeight*n)
}

// TakeMemory reserves n bytes of memory if the context has a Room.
func TakeMemory(ctx context.Context, n int64) error {
	r, ok := ctx.Value(roomKey{}).(Room)
	if !ok {
		return nil
	}
	return r(ctx, n)
}
