package transfer

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// NewBody returns body as a Body that is private or not, whatever body itself reports. Its errors
// are those of body converted by Foreign.
func NewBody(ctx context.Context, body io.ReadCloser, private bool) io.ReadCloser {
	return &newBody{body, ctx, private}
}

type newBody struct {
	io.ReadCloser
	ctx     context.Context // of the Fetch; io.Reader has no context parameter
	private bool
}

// Read implements io.Reader.
func (b *newBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, Foreign(b.ctx, err)
}

// Private implements Body.
func (b *newBody) Private() bool { return b.private }

// Foreign converts an error from outside so that it is not taken for the end of ctx: while ctx is
// active, a cancellation or timeout concerns other work, such as a closed connection, and becomes
// errdefs.ErrUnavailable. Other errors are returned unchanged.
func Foreign(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errdefs.IsCanceled(err) && !errdefs.IsDeadlineExceeded(err) {
		return err
	}
	return fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable) // without %w for err, which would keep its category
}
