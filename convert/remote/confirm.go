package remote

import (
	"context"
	"io"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// confirmTime is how long a confirmation by the registry may take. Tests that count requests change it.
var confirmTime = 5 * time.Second

// refusedFor is how long the registry is not asked again after it has not confirmed a blob.
const refusedFor = time.Minute

// A confirmation is what the registry of a reference says about a blob.
type confirmation struct {
	done chan struct{} // closed when the following are set

	private bool // it gives the blob only with credentials
	err     error
	until   time.Time // when err is over; guarded by Repository.mu
}

// confirm asks the registry of the reference, once for each blob, whether it gives the blob, and whether it wants
// credentials for that. A mirror may give everybody what it got with the credentials of others: only the
// registry says who may have it. Without a registry (Options.MirrorOnly), everything is private.
func (r *Repository) confirm(ctx context.Context, d digest.Digest) (private bool, err error) {
	origin := r.origin()
	if origin == nil {
		return true, nil
	}
	r.mu.Lock()
	c := r.confirmed[d]
	mine := c == nil || !c.until.IsZero() && time.Now().After(c.until)
	if mine {
		if len(r.confirmed) >= maxBlobs {
			clear(r.confirmed)
		}
		c = &confirmation{done: make(chan struct{})}
		r.confirmed[d] = c
	}
	r.mu.Unlock()
	if mine {
		go r.ask(context.WithoutCancel(ctx), origin, d, c) // others wait for it too
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

// ask gets a confirmation from origin.
func (r *Repository) ask(ctx context.Context, origin *endpoint, d digest.Digest, c *confirmation) {
	ctx, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	err := r.blob(ctx, origin, d, "bytes=0-0", func(resp *response) error {
		c.private = resp.private
		return resp.Body.Close()
	})
	r.mu.Lock()
	if c.err = err; err != nil {
		c.until = time.Now().Add(refusedFor)
	}
	r.mu.Unlock()
	close(c.done)
}

// A mirrored is a body from a mirror.
type mirrored struct {
	io.ReadCloser
	ctx context.Context // of the Fetch; Private has no parameter
	r   *Repository
	d   digest.Digest
}

// Private implements transfer.Body: the bytes are public only if the registry gives them without credentials.
func (b mirrored) Private() bool {
	if transfer.IsPrivate(b.ReadCloser) {
		return true
	}
	private, err := b.r.confirm(b.ctx, b.d)
	return private || err != nil
}
