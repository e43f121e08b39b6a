package transfer

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// NewBody returns body as a Body that is private or not, whatever it said before. Its errors are
// those of body as Foreign has them.
func NewBody(ctx context.Context, body io.ReadCloser, private bool) io.ReadCloser {
	return &newBody{body, ctx, private}
}

type newBody struct {
	io.ReadCloser
	ctx     context.Context // of the Fetch; an io.Reader has no other way to get it
	private bool
}

// Read implements io.Reader.
func (b *newBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, Foreign(b.ctx, err)
}

// Private implements Body.
func (b *newBody) Private() bool { return b.private }

// Foreign returns an error from outside in a form that nobody takes for the end of ctx: as long as
// ctx goes on, what says that something was canceled or took too long speaks of somebody else's work,
// such as a connection that is closed, and becomes errdefs.ErrUnavailable. All else is returned as it is.
func Foreign(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errdefs.IsCanceled(err) && !errdefs.IsDeadlineExceeded(err) {
		return err
	}
	return fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable) // without %w for err: it would still be what it says
}
