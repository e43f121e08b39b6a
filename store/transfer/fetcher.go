package transfer

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
)

// A Fetcher reads ranges of blobs from somewhere outside. It is the store's only way out
// and is not trusted: nothing it returns is readable before a digest over it has matched.
//
// Errors: errdefs.ErrNotFound if the blob is not there, errdefs.ErrUnauthenticated or
// errdefs.ErrPermissionDenied if credentials are missing or refused; these are final.
// Any other error is retried. A *RetryAfterError says how long to wait.
type Fetcher interface {
	// Fetch returns the bytes [off, off+n) of the blob with digest d and the given size.
	// The reader may end early; the caller asks again for the rest.
	//
	// A server without ranges answers with the whole blob: then Fetch returns a reader
	// from offset 0 and start == 0. In all other cases start == off.
	Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (body io.ReadCloser, start int64, err error)
}

// MaxRetryAfter is the longest wait a RetryAfterError asks for, whatever the server said.
const MaxRetryAfter = 60 * time.Second

// A RetryAfterError says that a server asked to come back later.
type RetryAfterError struct {
	After time.Duration // from 0 to MaxRetryAfter
	Err   error
}

func (e *RetryAfterError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RetryAfterError) Unwrap() error { return e.Err }
