package convert

import "context"

// roomKey is the key of a Room in a context.
type roomKey struct{}

// A Room gives memory for a document of n bytes that is about to be read, and waits for it. It returns
// errdefs.ErrUnavailable if there is none for too long. Who gave it takes it back when the work is over.
type Room func(ctx context.Context, n int64) error

// WithRoom returns a context in which documents are read only when r has given memory for them.
func WithRoom(ctx context.Context, r Room) context.Context {
	return context.WithValue(ctx, roomKey{}, r)
}

// SmallDocument is the largest document that is read without asking for memory, in bytes: nearly all
// manifests and configs are smaller, and a connection takes as much.
const SmallDocument = 64 << 10 // 64 KiB

// MakeRoom asks for memory for a document of n bytes where the context has a Room, unless it is small.
func MakeRoom(ctx context.Context, n int64) error {
	r, ok := ctx.Value(roomKey{}).(Room)
	if !ok || n <= SmallDocument {
		return nil
	}
	return r(ctx, n)
}
