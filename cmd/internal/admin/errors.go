package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/containerd/errdefs"
)

// Error is an error as it crosses the socket.
type Error struct {
	Code    string `json:"code"` // a category; see categories
	Message string `json:"message"`
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
	{"invalid_argument", errdefs.ErrInvalidArgument, http.StatusBadRequest},
	{"unavailable", errdefs.ErrUnavailable, http.StatusServiceUnavailable},
	{"unknown", errdefs.ErrUnknown, http.StatusInternalServerError},
}

// Wrap returns err as it crosses the socket.
func Wrap(err error) *Error {
	var e *Error
	if errors.As(err, &e) && e.Message == err.Error() {
		return e
	}
	for _, c := range categories {
		if errors.Is(err, c.err) {
			return &Error{Code: c.code, Message: err.Error()}
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
	return &Error{Code: code, Message: err.Error()}
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
