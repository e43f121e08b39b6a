package convert

import "context"

// roomKey is the context key of a Room.
type roomKey struct{}

// A Room reserves memory for a document of n bytes about to be read, and waits until it is
// available. It returns errdefs.ErrUnavailable after too long a wait. The owner of the Room
// releases the memory.
type Room func(ctx context.Context, n int64) error

// WithRoom returns a context in which documents are read only after r has reserved memory for them.
func WithRoom(ctx context.Context, r Room) context.Context {
	return context.WithValue(ctx, roomKey{}, r)
}

// SmallDocument is the largest document read without reserving memory, in bytes: nearly all
// manifests and configs are smaller, and a connection takes as much.
const SmallDocument = 64 << 10 // 64 KiB

// MakeRoom reserves memory for a document of n bytes if the context has a Room and the document is
// not small.
func MakeRoom(ctx context.Context, n int64) error {
	r, ok := ctx.Value(roomKey{}).(Room)
	if !ok || n <= SmallDocument {
		return nil
	}
	return r(ctx, n)
}
