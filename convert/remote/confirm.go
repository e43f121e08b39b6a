package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// confirmTime is how long a confirmation by the registry may take. Tests that count requests change it.
var confirmTime = 5 * time.Second

// How long the answer of a registry counts: that it gives a blob, that it does not, and that it has other bytes.
const (
	confirmedFor = time.Hour
	refusedFor   = time.Minute
	otherFor     = time.Hour
)

// A question about a blob for the registry of a reference: whether it gives the blob or, with proof, bytes of it.
type question struct {
	d     digest.Digest
	proof bool
}

// A confirmation is what the registry of a reference says about a blob.
type confirmation struct {
	done chan struct{} // closed when the following are set

	private bool // it gives the blob only with credentials
	err     error
	until   time.Time // when it is over, or zero; guarded by Repository.mu, which is also held to set err
}

// confirm asks the registry of the reference, once for each blob, whether it gives the blob, and whether it wants
// credentials for that. A mirror may give everybody what it got with the credentials of others: only the
// registry says who may have it. Without a registry (Options.MirrorOnly), everything is private. A registry can
// say what it wants: see prove.
func (r *Repository) confirm(ctx context.Context, d digest.Digest) (private bool, err error) {
	return r.known(ctx, question{d: d}, 0, sample{})
}

// prove is confirm for bytes that a mirror gave: the registry has to give the same. One that lies does not know which
// bytes it is asked for. Bytes that a mirror gave count as public only with such a proof.
func (r *Repository) prove(ctx context.Context, d digest.Digest, size int64, s sample) (private bool, err error) {
	return r.known(ctx, question{d, true}, size, s)
}

// ask asks the registry a question about a blob of a size, and compares its bytes with the sample if that is a proof.
func (r *Repository) ask(ctx context.Context, origin *endpoint, q question, size int64, s sample, c *confirmation) error {
	n := max(1, int64(len(s.bytes)))
	return r.blob(ctx, origin, q.d, fmt.Sprintf("bytes=%d-%d", s.off, s.off+n-1), func(resp *response) error {
		c.private = resp.private
		defer resp.Body.Close()
		if !q.proof {
			return nil
		}
		body, start, err := checkRange(resp.Response, size, s.off, n, true)
		if err != nil {
			return err
		}
		if start != s.off {
			return transfer.ErrNoRanges
		}
		got := make([]byte, n)
		if _, err := io.ReadFull(body, got); err != nil {
			return err
		}
		if !bytes.Equal(got, s.bytes) {
			return fmt.Errorf("the registry has other bytes than its mirror: %w", errdefs.ErrDataLoss)
		}
		return nil
	})
}

// disproved returns that the registry and a mirror gave different bytes of a blob, if that is known. Either can be
// wrong: nothing is verified yet.
func (r *Repository) disproved(d digest.Digest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.confirmed[question{d, true}]; c != nil && errdefs.IsDataLoss(c.err) && time.Now().Before(c.until) {
		return c.err
	}
	return nil
}

// known returns the answer to a question, which the registry is asked once until the answer is over; see ask.
func (r *Repository) known(ctx context.Context, q question, size int64, s sample) (private bool, err error) {
	origin := r.origin()
	if origin == nil {
		return true, nil
	}
	r.mu.Lock()
	c := r.confirmed[q]
	mine := c == nil || !c.until.IsZero() && time.Now().After(c.until)
	if mine {
		if len(r.confirmed) >= maxBlobs {
			clear(r.confirmed)
		}
		c = &confirmation{done: make(chan struct{})}
		r.confirmed[q] = c
	}
	r.mu.Unlock()
	if mine {
		go func() { // others wait for it too
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTime)
			defer cancel()
			r.answer(c, r.ask(ctx, origin, q, size, s, c))
		}()
	}
	select { // what is known is known without ctx too
	case <-c.done:
		return c.private, c.err
	default:
	}
	select {
	case <-c.done:
		return c.private, c.err
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// answer records the answer to a question.
func (r *Repository) answer(c *confirmation, err error) {
	keep := confirmedFor
	switch {
	case errdefs.IsDataLoss(err):
		keep = otherFor
	case err != nil:
		keep = refusedFor
	}
	r.mu.Lock()
	c.err, c.until = err, time.Now().Add(keep)
	r.mu.Unlock()
	close(c.done)
}

// sampleLen is the length of a sample, in bytes.
const sampleLen = 32

// A sample is bytes of a blob.
type sample struct {
	off   int64
	bytes []byte
}

// A mirrored is a body from a mirror.
type mirrored struct {
	io.ReadCloser
	ctx  context.Context // of the Fetch; Private has no parameter
	r    *Repository
	d    digest.Digest
	size int64 // of the blob

	off    int64  // of the next byte
	read   int64  // bytes
	sample sample // of what was read, at random
}

// Read implements io.Reader.
func (b *mirrored) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read += int64(n)
		if rand.Int64N(b.read) < int64(n) { // all that was read has the same chance
			at := rand.IntN(max(1, n-sampleLen+1))
			b.sample = sample{b.off + int64(at), bytes.Clone(p[at:min(n, at+sampleLen)])}
		}
		b.off += int64(n)
	}
	return n, err
}

// Private implements transfer.Body: what was read is public only if the registry gives it without credentials.
func (b *mirrored) Private() bool {
	if transfer.IsPrivate(b.ReadCloser) || len(b.sample.bytes) == 0 {
		return true
	}
	private, err := b.r.prove(b.ctx, b.d, b.size, b.sample)
	return private || err != nil
}
