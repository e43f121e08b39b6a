package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
)

// An error that wraps context.Canceled counts as a cancellation only if the context has ended.
func TestForeign(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	gone := fmt.Errorf("client connection is closing: %w", context.Canceled)
	slow := fmt.Errorf("token: %w", context.DeadlineExceeded)
	for _, err := range []error{gone, slow} {
		got := Foreign(t.Context(), err)
		if errors.Is(got, context.Canceled) || errors.Is(got, context.DeadlineExceeded) || !errdefs.IsUnavailable(got) {
			t.Errorf("%v: got %v before the context ends", err, got)
		}
		if got := Foreign(over, err); got != err {
			t.Errorf("%v: got %v after the context has ended", err, got)
		}
		body := NewBody(t.Context(), io.NopCloser(iotest.ErrReader(err)), true)
		if _, got := io.ReadAll(body); !errdefs.IsUnavailable(got) || errors.Is(got, context.Canceled) {
			t.Errorf("%v: read: got %v", err, got)
		}
	}
	for _, err := range []error{nil, io.EOF, errdefs.ErrNotFound} {
		if got := Foreign(t.Context(), err); got != err {
			t.Errorf("%v: got %v", err, got)
		}
	}
}
