package export

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// The size in bytes and the number of the buffers of a stream.
const (
	bufferSize = 1 << 20
	buffers    = 4
)

// Retries of a blob of the source whose transfer breaks off without any bytes.
const (
	readTries = 5
	readPause = 200 * time.Millisecond // doubles
)

// openBlob returns a verified blob of a source: Read returns a *verify.Error instead of the last
// bytes if they are wrong. also, if not nil, receives the bytes first, and verifies them if it
// computes the digest of the blob anyway.
func openBlob(ctx context.Context, f transfer.Fetcher, d digest.Digest, size int64, also *passage) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{
		cancel: cancel, free: make(chan []byte, buffers), full: make(chan piece, buffers),
		stream: &blobStream{ctx: ctx, f: f, d: d, size: size},
	}
	a.source = a.stream
	if also == nil || !also.whole {
		a.source = verify.NewReader(a.stream, d, size)
	}
	for range buffers {
		a.free <- nil // allocated when needed
	}
	read := a.full
	if also != nil {
		read = make(chan piece, buffers)
		a.done.Go(func() { a.hash(read, also) })
	}
	a.done.Go(func() { a.produce(ctx, read) })
	return a
}

// A piece is a filled buffer, and the result of its read.
type piece struct {
	p   []byte
	err error
}

// ahead reads a stream while earlier bytes are being used:
//
//	produce: read, verify ──▶ hash, if digests of chunks are wanted ──▶ Read ──▶ target
//
// Each runs on its own goroutine, since hashing takes longer than everything else. Close ends them.
type ahead struct {
	cancel context.CancelFunc
	stream *blobStream
	source io.Reader // stream, verified if also does not
	free   chan []byte
	full   chan piece
	done   sync.WaitGroup
	cur    piece
	off    int // in cur
}

// produce reads into free buffers and verifies.
func (a *ahead) produce(ctx context.Context, read chan<- piece) {
	defer close(read)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-ctx.Done():
			return
		}
		if buf == nil {
			buf = make([]byte, min(bufferSize, max(a.stream.size-a.stream.off, 1)))
		}
		n, err := io.ReadFull(a.source, buf[:cap(buf)])
		if err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		read <- piece{buf[:n], err} // has space for all buffers
		if err != nil {
			return
		}
	}
}

// hash passes on what was read, and hashes it.
func (a *ahead) hash(read <-chan piece, also *passage) {
	defer close(a.full)
	defer also.close()
	for p := range read {
		_, _ = also.Write(p.p) // never fails
		if err := also.verify(a.stream.d, a.stream.size); err != nil {
			p = piece{err: err}
		}
		a.full <- p
	}
}

// Read returns bytes that were read ahead.
func (a *ahead) Read(p []byte) (int, error) {
	for a.off == len(a.cur.p) {
		if a.cur.err != nil {
			return 0, a.cur.err
		}
		if a.cur.p != nil {
			a.free <- a.cur.p[:0]
		}
		var ok bool
		if a.cur, ok = <-a.full; !ok {
			a.cur = piece{err: context.Canceled}
		}
		a.off = 0
	}
	n := copy(p, a.cur.p[a.off:])
	a.off += n
	return n, nil
}

// Close ends the stream and waits for its end. It can be called again.
func (a *ahead) Close() error {
	a.cancel()
	a.done.Wait()
	a.stream.end()
	return nil
}

// A blobStream is a sequential read of a blob. It continues where a transfer broke off.
type blobStream struct {
	ctx   context.Context // of the caller of openBlob; an io.Reader has no context parameter
	f     transfer.Fetcher
	d     digest.Digest
	size  int64
	off   int64
	body  io.ReadCloser
	tries int
}

// Read reads the next bytes. Its errors are those of the Fetcher.
func (b *blobStream) Read(p []byte) (int, error) {
	for {
		if b.off == b.size {
			return 0, io.EOF
		}
		n, err := b.read(p)
		if n > 0 {
			b.tries = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := b.wait(err); err != nil {
			return 0, err
		}
	}
}

// read reads once; it can return no bytes and no error.
func (b *blobStream) read(p []byte) (int, error) {
	if b.body == nil {
		body, start, err := b.f.Fetch(b.ctx, b.d, b.size, b.off, b.size-b.off)
		if err != nil {
			return 0, err
		}
		b.body = body
		if start != b.off {
			if _, err := io.CopyN(io.Discard, body, b.off-start); err != nil {
				b.end()
				return 0, fmt.Errorf("blob %s: %w: %w", b.d, err, errdefs.ErrUnavailable)
			}
		}
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.size-b.off)])
	b.off += int64(n)
	if err == nil {
		return n, nil
	}
	b.end()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
		if n > 0 {
			return n, nil
		}
	}
	return n, fmt.Errorf("blob %s: %w", b.d, err)
}

// wait returns err if a read is not worth a retry, and otherwise waits before it.
func (b *blobStream) wait(err error) error {
	b.tries++
	if b.ctx.Err() != nil || b.tries == readTries || final(err) {
		if b.ctx.Err() == nil && !final(err) && !errdefs.IsUnavailable(err) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
		}
		return err
	}
	return transfer.Wait(b.ctx, readPause<<(b.tries-1), err)
}

// final reports whether an error is permanent.
func final(err error) bool {
	return transfer.Final(err) || errdefs.IsDataLoss(err) || errdefs.IsResourceExhausted(err)
}

// end closes what is open.
func (b *blobStream) end() {
	if b.body != nil {
		b.body.Close()
		b.body = nil
	}
}
