package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// Limits of what is read of a response that is an error or a redirect, in bytes and in time.
const (
	maxErrorBody = 16 << 10
	drainTime    = 10 * time.Second
)

// maxMessage limits the text of a registry in an error, in bytes.
const maxMessage = 300

// defaultRetryAfter is the wait if a registry asks to retry without a time.
const defaultRetryAfter = 2 * time.Second

// drain reads and closes the small body of a response, so that the connection can be reused, and returns at most
// maxErrorBody bytes that arrive within drainTime. Errors are ignored.
func drain(resp *http.Response) []byte {
	defer resp.Body.Close()
	late := time.AfterFunc(drainTime, func() { resp.Body.Close() })
	defer late.Stop()
	p, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	return p
}

// statusError converts an unsuccessful response to an error and closes it. secrets are removed from
// the text of the registry.
func statusError(resp *http.Response, host string, secrets ...string) error {
	msg := registryMessage(drain(resp))
	for _, s := range secrets {
		if s != "" {
			msg = strings.ReplaceAll(msg, s, "***")
		}
	}
	what := fmt.Sprintf("%s answered %d %s", host, resp.StatusCode, http.StatusText(resp.StatusCode))
	if msg != "" {
		what += ": " + msg
	}
	switch {
	case resp.StatusCode == http.StatusForbidden:
		what += "; ask the registry's owner for access, or use other credentials"
	case resp.StatusCode >= http.StatusInternalServerError:
		what += "; try again later"
	}
	err := as(category(resp.StatusCode), what)
	if after, ok := retryAfter(resp, time.Now()); ok {
		return &transfer.RetryAfterError{After: after, Err: err}
	}
	return err
}

// An AnonymousLimit is the error of a host that answered 429 to a request without credentials. An account may have a
// limit of its own.
type AnonymousLimit struct {
	error
	again bool // the host said when to ask again
}

// Unwrap returns the error.
func (e *AnonymousLimit) Unwrap() error { return e.error }

// limitError returns err, as an AnonymousLimit if it is that. A dialect gives its own advice.
func limitError(resp *http.Response, host string, anonymous, dialect bool, err error) error {
	if resp.StatusCode != http.StatusTooManyRequests {
		return err
	}
	if dialect {
		err = limitOf(resp, err)
	}
	if !anonymous {
		return err
	}
	if !dialect {
		err = fmt.Errorf("%w; its limit may be higher after docker login %s", err, host)
	}
	return &AnonymousLimit{err, resp.Header.Get("Retry-After") != ""}
}

// isQuota reports whether err is an AnonymousLimit that does not end soon.
func isQuota(err error) bool {
	e, ok := errors.AsType[*AnonymousLimit](err)
	return ok && !e.again
}

// as returns an error of a category of errdefs, whose text is only the message.
func as(category error, message string) error {
	return category.(interface{ WithMessage(string) error }).WithMessage(message)
}

// category returns the errdefs category of a status.
func category(status int) error {
	switch status {
	case http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case http.StatusNotFound, http.StatusGone, http.StatusMethodNotAllowed:
		return errdefs.ErrNotFound
	case http.StatusPreconditionFailed:
		return errdefs.ErrFailedPrecondition
	case http.StatusRequestedRangeNotSatisfiable:
		return errdefs.ErrOutOfRange
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		return errdefs.ErrUnavailable
	case http.StatusUnavailableForLegalReasons:
		return errdefs.ErrPermissionDenied
	}
	if status >= 500 {
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrUnknown
}

// retryAfter returns the requested wait of a response.
func retryAfter(resp *http.Response, now time.Time) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	h := resp.Header.Get("Retry-After")
	if after, ok := transfer.ParseRetryAfter(h, now); ok {
		return after, true
	}
	if h == "" && resp.StatusCode == http.StatusServiceUnavailable {
		return 0, false
	}
	return defaultRetryAfter, true
}

// registryMessage returns the text in the body of an error response, as one printable line.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#error-codes
func registryMessage(p []byte) string {
	var body struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(p, &body); err != nil {
		return ""
	}
	var l []string
	for _, e := range body.Errors {
		l = append(l, strings.TrimSpace(e.Code+" "+e.Message))
	}
	s := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.Join(l, ", "))
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// authError converts an error of containerd's authorizer to one without URLs and credentials.
func authError(host string, err error) error {
	if e, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok {
		cat := category(e.StatusCode)
		if e.StatusCode >= 400 && e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests {
			cat = errdefs.ErrUnauthenticated
		}
		return as(cat, fmt.Sprintf("the token server of %s answered %d", host, e.StatusCode))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%s: token server: %w", host, e.Err)
	}
	switch {
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return as(errdefs.ErrUnauthenticated, host+" requires credentials, or rejected those that it got")
	case errdefs.IsNotImplemented(err):
		return as(errdefs.ErrUnauthenticated, host+" requires an authentication that is not supported")
	case errors.Is(err, errCredentials):
		return fmt.Errorf("%s: %w", host, err)
	}
	return fmt.Errorf("%s: invalid response of the token server: %w", host, errdefs.ErrUnavailable)
}

// errCredentials marks errors of looking up credentials, which contain no secrets.
var errCredentials = errors.New("look up credentials")
