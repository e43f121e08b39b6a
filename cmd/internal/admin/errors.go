package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

// Error is an error as it crosses the socket.
type Error struct {
	Code    string `json:"code"`    // a category; see categories
	Message string `json:"message"` // as Text gives it
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the category of e, an error of errdefs.
func (e *Error) Unwrap() error {
	for _, c := range categories {
		if c.code == e.Code {
			return c.err
		}
	}
	return errdefs.ErrUnknown
}

// categories are the codes of Error with what they stand for. The first that an error belongs
// to wins, so the telling ones come first.
var categories = []struct {
	code   string
	err    error
	status int
}{
	{"data_loss", errdefs.ErrDataLoss, http.StatusBadGateway},
	{"resource_exhausted", errdefs.ErrResourceExhausted, http.StatusInsufficientStorage},
	{"unauthenticated", errdefs.ErrUnauthenticated, http.StatusUnauthorized},
	{"permission_denied", errdefs.ErrPermissionDenied, http.StatusForbidden},
	{"not_found", errdefs.ErrNotFound, http.StatusNotFound},
	{"not_implemented", errdefs.ErrNotImplemented, http.StatusNotImplemented},
	{"already_exists", errdefs.ErrAlreadyExists, http.StatusConflict},
	{"failed_precondition", errdefs.ErrFailedPrecondition, http.StatusPreconditionFailed},
	{"aborted", errdefs.ErrAborted, http.StatusConflict},
	{"deadline_exceeded", context.DeadlineExceeded, http.StatusGatewayTimeout},
	{"canceled", context.Canceled, 499}, // no name in net/http: the client closed the request
	{"invalid_model", resolve.ErrInvalidModel, http.StatusUnprocessableEntity},
	{"invalid_argument", errdefs.ErrInvalidArgument, http.StatusBadRequest},
	{"unavailable", errdefs.ErrUnavailable, http.StatusServiceUnavailable},
	{"unknown", errdefs.ErrUnknown, http.StatusInternalServerError},
}

// Wrap returns err as it crosses the socket.
func Wrap(err error) *Error {
	var e *Error
	if errors.As(err, &e) && e.Message == Text(err) {
		return e
	}
	for _, c := range categories {
		if errors.Is(err, c.err) {
			return &Error{Code: c.code, Message: Text(err)}
		}
	}
	code := "unknown"
	var netErr net.Error
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = "resource_exhausted"
	case errors.As(err, &netErr), errors.Is(err, io.ErrUnexpectedEOF):
		code = "unavailable"
	}
	return &Error{Code: code, Message: Text(err)}
}

// status returns the HTTP status of e.
func (e *Error) status() int {
	for _, c := range categories {
		if c.code == e.Code {
			return c.status
		}
	}
	return http.StatusInternalServerError
}

// silent are the categories whose name says nothing to people at the end of a message that has
// said what is wrong. It stays where it is the message: "model x: not found".
var silent = []error{
	errdefs.ErrInvalidArgument, errdefs.ErrNotImplemented, errdefs.ErrUnavailable, errdefs.ErrDataLoss,
	errdefs.ErrFailedPrecondition, errdefs.ErrAlreadyExists, errdefs.ErrResourceExhausted, errdefs.ErrAborted,
	errdefs.ErrUnknown, errdefs.ErrOutOfRange,
}

// Text returns what err says to people: its text without the categories of errdefs at the ends
// of its lines. "invalid argument" stays where it is the kernel's word (EINVAL).
func Text(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = withoutCategories(lines[i], err)
	}
	return strings.Join(lines, "\n")
}

func withoutCategories(line string, err error) string {
	// A server has said it in nearly the same words: "answered 404 Not Found: not found".
	said := errdefs.ErrNotFound.Error()
	if rest, ok := strings.CutSuffix(line, ": "+said); ok && strings.HasSuffix(strings.ToLower(rest), said) {
		line = rest
	}
	for again := true; again; {
		again = false
		for _, c := range silent {
			if rest, ok := strings.CutSuffix(line, ": "+c.Error()); ok && errors.Is(err, c) {
				line, again = rest, true
			}
		}
	}
	return line
}

// An about is an error with what it is about, said once.
type about struct {
	name string
	err  error
}

// About returns an error that says "name: err", however often err says the name itself.
func About(name string, err error) error { return &about{name, err} }

func (e *about) Error() string {
	text, prefix := e.err.Error(), e.name+": "
	for {
		rest, ok := strings.CutPrefix(text, prefix)
		if !ok {
			return prefix + text
		}
		text = rest
	}
}

func (e *about) Unwrap() error { return e.err }
