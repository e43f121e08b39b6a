package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// A Client talks to the daemon. Errors are of the categories that the daemon's errors have;
// errdefs.ErrUnavailable if it does not answer.
type Client struct {
	address string
	http    http.Client
}

// NewClient returns a client for the admin socket at address. It does not connect yet.
func NewClient(address string) *Client {
	var d net.Dialer
	return &Client{address: address, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", address)
		},
		DisableCompression: true,
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version returns what runs.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/version", nil, &v)
}

// Health returns facts about the daemon.
func (c *Client) Health(ctx context.Context) (v Health, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/health", nil, &v)
}

// RotateCA replaces the keys by which containerd and the facade know each other.
func (c *Client) RotateCA(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/facade/rotate", nil, new(struct{}))
}

// Images returns all images.
func (c *Client) Images(ctx context.Context) (v []Image, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/images", nil, &v)
}

// Image returns one image; name is a reference or a digest.
func (c *Client) Image(ctx context.Context, name string) (v Detail, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/image?name="+url.QueryEscape(name), nil, &v)
}

// RemoveImage forgets what name stands for, and its pins.
func (c *Client) RemoveImage(ctx context.Context, name string) (v Removed, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/image?name="+url.QueryEscape(name), nil, &v)
}

// Status returns what the daemon does.
func (c *Client) Status(ctx context.Context) (v Status, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/status", nil, &v)
}

// Pins returns all pins.
func (c *Client) Pins(ctx context.Context) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/pins", nil, &v)
}

// Pin pins what a name stands for and returns the pins.
func (c *Client) Pin(ctx context.Context, r PinRequest) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodPut, "/v1/pin", r, &v)
}

// Unpin removes the pin of a reference, or all pins of a digest, and returns them.
func (c *Client) Unpin(ctx context.Context, name string) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/pin?name="+url.QueryEscape(name), nil, &v)
}

// GC collects.
func (c *Client) GC(ctx context.Context, o store.GCOptions) (v store.GCResult, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/gc", o, &v)
}

// Usage returns the disk use.
func (c *Client) Usage(ctx context.Context) (v store.Usage, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/df", nil, &v)
}

// Prefetch fetches a model and calls event for each line but the last. If ctx ends, the daemon
// goes on; errdefs.ErrAborted says that it stopped, and that what it had is kept.
func (c *Client) Prefetch(ctx context.Context, r PrefetchRequest, event func(Event)) (store.Image, error) {
	var im *store.Image
	err := readStream(ctx, c, "/v1/prefetch", r, func(e Event) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error
		case e.Image != nil:
			im = e.Image
			return true, nil
		}
		event(e)
		return false, nil
	})
	if err != nil {
		return store.Image{}, err
	}
	return *im, nil
}

// Verify compares objects with their digests and calls event for each line but the last. If a
// repair fails, it returns what was found as well as the error.
func (c *Client) Verify(ctx context.Context, r VerifyRequest, event func(VerifyEvent)) (VerifyResult, error) {
	var res *VerifyResult
	err := readStream(ctx, c, "/v1/verify", r, func(e VerifyEvent) (bool, error) {
		switch {
		case e.Error != nil:
			res = e.Result
			return true, e.Error
		case e.Result != nil:
			res = e.Result
			return true, nil
		}
		event(e)
		return false, nil
	})
	if res == nil {
		return VerifyResult{}, err
	}
	return *res, err
}

// readStream posts in and calls each with every line of the answer, until it says that it was
// the last.
func readStream[T any](ctx context.Context, c *Client, path string, in any, each func(T) (last bool, err error)) error {
	body, err := c.do(ctx, http.MethodPost, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var v T
		if err := dec.Decode(&v); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the connection to ballastd was lost, what it downloaded is kept: %w: %w", err, errdefs.ErrAborted)
		}
		if last, err := each(v); last || err != nil {
			return err
		}
	}
}

// call sends in as JSON if it is not nil, and decodes the answer into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := c.do(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("answer of ballastd: %w", err)
	}
	return nil
}

// do returns the body of a good answer; the caller closes it.
func (c *Client) do(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var b bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&b).Encode(in); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://ballastd"+path, &b)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	var e Error
	if err := json.NewDecoder(io.LimitReader(res.Body, maxRequest)).Decode(&e); err != nil || e.Message == "" {
		return nil, fmt.Errorf("ballastd answers %s to %s %s; does it have the same version?: %w", res.Status, method, path, errdefs.ErrNotImplemented)
	}
	return nil, &e
}

// explain says why there was no answer.
func (c *Client) explain(ctx context.Context, err error) error {
	var op *url.Error
	if errors.As(err, &op) {
		err = op.Err // the URL says nothing to people
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrPermission):
		return &Error{Code: "permission_denied", Message: err.Error() + "; only root can use the admin socket"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("ballastd is not running (systemctl start ballastd), or it has another admin socket (--address): %w: %w", err, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("ask ballastd at %s: %w: %w", c.address, err, errdefs.ErrUnavailable)
}
