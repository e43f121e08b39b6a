package transfer

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Fetcher reads ranges of blobs from outside. It is the store's only access to the outside and is
// not trusted: its bytes cannot be read before a digest over them has matched.
//
// Errors: errdefs.ErrNotFound if the blob does not exist, errdefs.ErrUnauthenticated or
// errdefs.ErrPermissionDenied if credentials are missing or refused; these are final. Other errors
// are retried. A *RetryAfterError says how long to wait.
type Fetcher interface {
	// Fetch returns the bytes [off, off+n) of the blob with digest d and the given size. The reader
	// may end early; the caller requests the rest again.
	//
	// A server without ranges sends the whole blob: then Fetch returns a reader from offset 0 and
	// start == 0. In all other cases start == off.
	Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (body io.ReadCloser, start int64, err error)
}

// ErrNotAsked means that a Fetcher did not ask its server for a blob, for a reason that says nothing about the server.
// It is errdefs.ErrNotFound.
var ErrNotAsked error = notAsked{}

type notAsked struct{}

func (notAsked) Error() string { return "not asked" }
func (notAsked) Unwrap() error { return errdefs.ErrNotFound }

// MaxRetryAfter limits the wait of a RetryAfterError, whatever the server requests.
const MaxRetryAfter = 60 * time.Second

// ParseRetryAfter returns the wait in a Retry-After, in seconds or as a date, from 0 to MaxRetryAfter.
// ok is false for anything else.
// https://www.rfc-editor.org/rfc/rfc9110#name-retry-after
func ParseRetryAfter(header string, now time.Time) (after time.Duration, ok bool) {
	if seconds, err := strconv.ParseInt(header, 10, 32); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if t, err := http.ParseTime(header); err == nil {
		after = t.Sub(now)
	} else {
		return 0, false
	}
	return min(max(after, 0), MaxRetryAfter), true
}

// A RetryAfterError means that a server requested to retry later.
type RetryAfterError struct {
	After time.Duration // from 0 to MaxRetryAfter
	Err   error
}

func (e *RetryAfterError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RetryAfterError) Unwrap() error { return e.Err }
