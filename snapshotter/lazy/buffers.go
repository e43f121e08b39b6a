package lazy

import "github.com/ballast-dev/ballast/store/offheap"

// smallRead is the largest read answered from Go memory.
const smallRead = 64 << 10 // 64 KiB

// MaxBuffers is the largest amount of memory outside the Go heap that a mount uses for answers, in
// bytes.
const MaxBuffers = largeAnswers * maxRead

// largeAnswers limits the answers of more than smallRead made at the same time. Making one waits
// for disk reads only.
const largeAnswers = 16

// buffers provides memory for answers.
type buffers struct {
	large *offheap.Pool
	free  chan struct{} // one token for each large buffer in use
}

func newBuffers() *buffers {
	return &buffers{large: offheap.New(maxRead), free: make(chan struct{}, largeAnswers)}
}

// with calls fill with memory for an answer of size bytes. It waits while all large buffers are in
// use.
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
