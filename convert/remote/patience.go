package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
)

// maxPatience limits how long one request waits for the limit of a host.
const maxPatience = time.Hour

type patienceKey struct{}

// A Patience is called with the host, named as in references, for whose limit a request waits, and until when; and with
// zero values when it continues.
type Patience func(host string, until time.Time)

// WithPatience returns a context in which a manifest of a host with a Dialect is asked for again when the limit of the
// host allows it, instead of an error. With nil, it is not.
func WithPatience(ctx context.Context, p Patience) context.Context {
	return context.WithValue(ctx, patienceKey{}, p)
}

// A hostLimit is the error of a Dialect whose host asks for a pause, of any length.
type hostLimit struct {
	error
	after time.Duration
}

// Unwrap returns the error.
func (e *hostLimit) Unwrap() error { return e.error }

// limitOf returns err, which is that of a 429 of a Dialect, as a hostLimit if it says for how long.
func limitOf(resp *http.Response, err error) error {
	n, wrong := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31)
	if wrong != nil {
		return err
	}
	return &hostLimit{err, time.Duration(n) * time.Second}
}

// waitsFor returns how long a request with the error err waits in ctx; 0 if it does not.
func waitsFor(ctx context.Context, err error) time.Duration {
	if p, _ := ctx.Value(patienceKey{}).(Patience); p == nil {
		return 0
	}
	if limit, ok := errors.AsType[*hostLimit](err); ok {
		return limit.after
	}
	return 0
}

// wait waits for the limit that is the cause of err, and returns nil, or the error of ctx. It returns err if it does
// not wait, because of ctx, or because the request began at start. Nodes that were refused together do not come back
// together.
func (r *Repository) wait(ctx context.Context, start time.Time, err error) error {
	d := waitsFor(ctx, err)
	late := rand.N(d/8 + 1)
	if d == 0 || time.Since(start)+d+late > maxPatience {
		return err
	}
	tell := ctx.Value(patienceKey{}).(Patience)
	tell(r.ref.Host, time.Now().Add(d+late))
	defer tell("", time.Time{})
	return transfer.Wait(ctx, d+late, nil)
}
