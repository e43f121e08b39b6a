package wire

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
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// MaxBody is the largest body of a request or of an error, in bytes.
const MaxBody = 1 << 20

// The daemon says with a response of status 102 that it works on an answer: after FirstWorking, then every Working
// while its disk writes.
const (
	FirstWorking = time.Second
	Working      = 5 * time.Second
)

// maxSilence is how long the daemon may say nothing before its answer begins: first, so that commands end soon when
// it hangs, and while it works, when its disk may be slow.
const (
	maxSilence        = 10 * time.Second
	maxSilenceWorking = time.Minute
)

// ErrSilent means that the daemon has not begun to answer.
var ErrSilent = fmt.Errorf("ballastd does not answer: it hangs, or its disk does; systemctl restart ballastd ends that, if it is not the disk: %w", errdefs.ErrUnavailable)

// A Client sends requests to the daemon. Errors have the category of the daemon's error, or errdefs.ErrUnavailable if
// the daemon does not answer: ErrSilent if it runs. An answer that has begun may take any time.
type Client struct {
	address string
	http    http.Client

	silence, working time.Duration // maxSilence, maxSilenceWorking
}

// NewClient returns a client for the admin socket at address. It does not connect yet.
func NewClient(address string) *Client {
	var d net.Dialer
	return &Client{address: address, silence: maxSilence, working: maxSilenceWorking, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", address)
		},
		DisableCompression: true,
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version returns the version of the daemon.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/version", nil, &v)
}

// maxHealth limits Health, which tells what else does not answer.
const maxHealth = 30 * time.Second

// Health returns facts about the daemon.
func (c *Client) Health(ctx context.Context) (v Health, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxHealth, ErrSilent)
	defer cancel()
	return v, c.call(ctx, http.MethodGet, "/v1/health", nil, &v)
}

// Reached returns, for each registry, whether it answers ballastd. ballastd asks at most MaxReached.
func (c *Client) Reached(ctx context.Context, registries []string) (v []Reached, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/registries?"+url.Values{"name": registries}.Encode(), nil, &v)
}

// RotateCA replaces the keys with which containerd and the facade authenticate each other.
func (c *Client) RotateCA(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/facade/rotate", nil, new(struct{}))
}

// Images returns all images.
func (c *Client) Images(ctx context.Context) (v []Image, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/images", nil, &v)
}

// SizedImages is Images with the Share of each.
func (c *Client) SizedImages(ctx context.Context) (v []Image, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/images?size=true", nil, &v)
}

// Image returns one image; name is a reference or a digest.
func (c *Client) Image(ctx context.Context, name string) (v Detail, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/image?name="+url.QueryEscape(name), nil, &v)
}

// Why explains one image; name is a reference or a digest.
func (c *Client) Why(ctx context.Context, name string) (v Why, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/why?name="+url.QueryEscape(name), nil, &v)
}

// RemoveImage removes the image called name and its pins; with now also its files, unless it is in use.
func (c *Client) RemoveImage(ctx context.Context, name string, now bool) (v Removed, err error) {
	return v, c.call(ctx, http.MethodDelete, removalPath("/v1/image", name, now), nil, &v)
}

// Removal returns what RemoveImage would remove, without downloads.
func (c *Client) Removal(ctx context.Context, name string, now bool) (v Removed, err error) {
	return v, c.call(ctx, http.MethodGet, removalPath("/v1/removal", name, now), nil, &v)
}

func removalPath(path, name string, now bool) string {
	path += "?name=" + url.QueryEscape(name)
	if now {
		path += "&now=true"
	}
	return path
}

// Status returns the work of the daemon.
func (c *Client) Status(ctx context.Context) (v Status, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/status", nil, &v)
}

// Pins returns all pins.
func (c *Client) Pins(ctx context.Context) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/pins", nil, &v)
}

// Pin pins the model called name and returns the pins.
func (c *Client) Pin(ctx context.Context, r PinRequest) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodPut, "/v1/pin", r, &v)
}

// Unpin removes the pin of a reference, or all pins of a digest, and returns them.
func (c *Client) Unpin(ctx context.Context, name string) (v []Pin, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/pin?name="+url.QueryEscape(name), nil, &v)
}

// GC runs a garbage collection.
func (c *Client) GC(ctx context.Context, o GCOptions) (v GCResult, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/gc", o, &v)
}

// Usage returns the disk usage.
func (c *Client) Usage(ctx context.Context) (v Usage, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/df", nil, &v)
}

// Prefetch downloads a model and calls event for each line but the last. If ctx ends, the daemon
// continues. errdefs.ErrAborted means that the daemon stopped; downloaded bytes are kept.
func (c *Client) Prefetch(ctx context.Context, r PrefetchRequest, event func(Event)) (Record, error) {
	last, err := readStream(ctx, c, "/v1/prefetch", r, event, Event.end)
	if err != nil {
		return Record{}, err
	}
	return *last.Image, nil
}

// Verify compares objects with their digests and calls event for each line but the last. If a
// repair fails, it returns both the result and the error.
func (c *Client) Verify(ctx context.Context, r VerifyRequest, event func(VerifyEvent)) (VerifyResult, error) {
	last, err := readStream(ctx, c, "/v1/verify", r, event, VerifyEvent.end)
	if last.Result == nil {
		return VerifyResult{}, err
	}
	return *last.Result, err
}

// readStream sends in with POST and calls each with the lines of the response, up to and without
// the last one, for which end returns true or an error. It returns the last line.
func readStream[T any](ctx context.Context, c *Client, path string, in any, each func(T), end func(T) (bool, error)) (T, error) {
	body, err := c.do(ctx, http.MethodPost, path, in)
	if err != nil {
		return *new(T), err
	}
	defer body.Close()
	return readLines(ctx, body, each, end)
}

// readLines is readStream for a response.
func readLines[T any](ctx context.Context, body io.Reader, each func(T), end func(T) (bool, error)) (last T, err error) {
	dec := json.NewDecoder(body)
	for {
		var line T
		if err := dec.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return last, ctx.Err()
			}
			return last, fmt.Errorf("the connection to ballastd was lost, what it downloaded is kept: %w: %w", err, errdefs.ErrAborted)
		}
		if ended, err := end(line); ended || err != nil {
			return line, err
		}
		each(line)
	}
}

// ended returns what end of a line does: whether it is the last one, by its error or its result.
func ended(e *Error, result bool) (bool, error) {
	if e != nil {
		return true, e
	}
	return result, nil
}

func (e Event) end() (bool, error)           { return ended(e.Error, e.Image != nil) }
func (e ImportEvent) end() (bool, error)     { return ended(e.Error, e.Imported != nil) }
func (e VerifyEvent) end() (bool, error)     { return ended(e.Error, e.Result != nil) }
func (e HashStatesEvent) end() (bool, error) { return ended(e.Error, e.States != nil) }

// call sends in as JSON, unless it is nil, and decodes the response into out.
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

// do returns the body of a successful response; the caller closes it.
func (c *Client) do(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var b bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&b).Encode(in); err != nil {
			return nil, err
		}
	}
	return c.send(ctx, method, path, &b)
}

// send is do for a request with any body.
func (c *Client) send(ctx context.Context, method, path string, in io.Reader) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	silence := time.AfterFunc(c.silence, func() { cancel(ErrSilent) })
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		silence.Reset(c.working)
		return nil
	}})
	req, err := http.NewRequestWithContext(traced, method, "http://ballastd"+path, in)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if !silence.Stop() && err == nil { // just now
		err = errors.Join(ErrSilent, res.Body.Close())
	}
	if err != nil {
		defer cancel(nil)
		return nil, c.explain(ctx, err)
	}
	body := &answer{res.Body, cancel}
	if res.StatusCode == http.StatusOK {
		return body, nil
	}
	defer body.Close()
	var e Error
	if err := json.NewDecoder(io.LimitReader(res.Body, MaxBody)).Decode(&e); err != nil || e.Message == "" {
		return nil, fmt.Errorf("ballastd answers %s to %s %s; does it have the same version?: %w", res.Status, method, path, errdefs.ErrNotImplemented)
	}
	return nil, &e
}

// An answer is the body of a response. Close ends the request.
type answer struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (a *answer) Close() error {
	defer a.cancel(nil)
	return a.ReadCloser.Close()
}

// explain returns why there is no response.
func (c *Client) explain(ctx context.Context, err error) error {
	var op *url.Error
	if errors.As(err, &op) {
		err = op.Err // the URL means nothing to the user
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, syscall.EAGAIN): // so many wait for it that no more can
		return ErrSilent
	case errors.Is(err, fs.ErrPermission):
		return &Error{Code: "permission_denied", Message: err.Error() + "; only root can use the admin socket"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("ballastd is not running (systemctl start ballastd), or it has another admin socket (--address): %w: %w", err, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("ask ballastd at %s: %w: %w", c.address, err, errdefs.ErrUnavailable)
}

// Pause pauses or resumes background downloads; it returns whether they are paused.
func (c *Client) Pause(ctx context.Context, paused bool) (bool, error) {
	var v PauseRequest
	err := c.call(ctx, http.MethodPut, "/v1/pause", PauseRequest{paused}, &v)
	return v.Paused, err
}

// ImportModels returns the names of the models of the Ollama store in a directory.
func (c *Client) ImportModels(ctx context.Context, dir string) (v []string, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/import/models", ImportRequest{Dir: dir}, &v)
}

// Import imports a model and calls event for each line but the last. If ctx ends, the daemon
// continues; see Prefetch.
func (c *Client) Import(ctx context.Context, r ImportRequest, event func(Event)) ([]Imported, error) {
	last, err := readStream(ctx, c, "/v1/import", r, func(e ImportEvent) { event(e.Event) }, ImportEvent.end)
	return last.Imported, err
}

// ImportArchive imports the models of an archive, which is stream if the request has no path, and calls event for
// each line but the last. If ctx ends after the daemon has read the stream, it continues; see Prefetch.
func (c *Client) ImportArchive(ctx context.Context, r ArchiveRequest, stream io.Reader, event func(Event)) ([]Imported, error) {
	p, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	body, err := c.send(ctx, http.MethodPost, "/v1/import/archive?"+url.Values{"request": {string(p)}}.Encode(), stream)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	last, err := readLines(ctx, body, func(e ImportEvent) { event(e.Event) }, ImportEvent.end)
	return last.Imported, err
}

// Resolve returns where a model is mounted. c is a client of the socket in resolve.address.
func (c *Client) Resolve(ctx context.Context, name string) (v Resolved, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/resolve?"+url.Values{"name": {name}}.Encode(), nil, &v)
}

// Mount prepares a mount and returns what to mount.
func (c *Client) Mount(ctx context.Context, r MountRequest) (v Mount, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/mount", r, &v)
}

// Mounts returns all mounts on the host.
func (c *Client) Mounts(ctx context.Context) (v []Mount, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/mounts", nil, &v)
}

// Unmounted reports to the daemon that the mount at a directory is gone.
func (c *Client) Unmounted(ctx context.Context, dir string) error {
	return c.call(ctx, http.MethodDelete, "/v1/mount?dir="+url.QueryEscape(dir), nil, new(struct{}))
}

// Signatures looks for the signatures of a reference and checks them against the rules.
func (c *Client) Signatures(ctx context.Context, ref string) (v Signatures, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/signatures?"+url.Values{"name": {ref}}.Encode(), nil, &v)
}

// Ready returns why the daemon does not serve models, or that it is not of this program's version.
func (c *Client) Ready(ctx context.Context) error {
	h, err := c.Health(ctx)
	switch ours := ThisVersion().Version; {
	case err != nil:
		return err
	case h.Version.Version != ours:
		return fmt.Errorf("ballastd is version %s, this is %s: %w", h.Version.Version, ours, errdefs.ErrUnavailable)
	case h.ContainerdError != "":
		return fmt.Errorf("containerd does not answer ballastd: %s: %w", h.ContainerdError, errdefs.ErrUnavailable)
	case !h.ContainerdLoaded:
		return fmt.Errorf("containerd has not loaded ballast: restart it: %w", errdefs.ErrUnavailable)
	case h.FacadeHealth.Error != "":
		return fmt.Errorf("the facade does not answer: %s: %w", h.FacadeHealth.Error, errdefs.ErrUnavailable)
	}
	return nil
}
