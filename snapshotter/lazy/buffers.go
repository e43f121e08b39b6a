package lazy

import "github.com/ballast-dev/ballast/store/offheap"

// smallRead is up to what size a read uses ordinary memory.
const smallRead = 64 << 10 // 64 KiB

// MaxBuffers is how many bytes of memory off the Go heap a mount has at most, for answers that are on their way to
// the kernel.
const MaxBuffers = largeAnswers * maxRead

// largeAnswers is how many answers of more than smallRead are made at the same time. Who makes one waits for nothing
// but a disk.
const largeAnswers = 16

// buffers has memory for answers.
type buffers struct {
	large *offheap.Pool
	free  chan struct{} // takes one for each large buffer that is in use
}

func newBuffers() *buffers {
	return &buffers{large: offheap.New(maxRead), free: make(chan struct{}, largeAnswers)}
}

// with calls fill with memory for an answer of size bytes, and waits for it if need be.
func (b *buffers) with(size int, fill func([]byte) error) error {
	if size <= smallRead {
		return fill(make([]byte, size))
	}
	b.free <- struct{}{}
	defer func() { <-b.free }()
	buf, err := b.large.Take()
	if err != nil {
		return err
	}
	defer b.large.Put(buf)
	return fill(buf[:size])
}
