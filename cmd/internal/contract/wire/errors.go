package wire

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// Error is an error as sent over the socket.
type Error struct {
	Code    string `json:"code"`    // a category; see categories
	Message string `json:"message"` // as returned by Text
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

// categories are the codes of Error and their errors. The first one that matches an error is used,
// so the specific ones come first.
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
	{"canceled", context.Canceled, 499}, // not named in net/http: the client closed the request
	{"invalid_argument", errdefs.ErrInvalidArgument, http.StatusBadRequest},
	{"unavailable", errdefs.ErrUnavailable, http.StatusServiceUnavailable},
	{"unknown", errdefs.ErrUnknown, http.StatusInternalServerError},
}

// Wrap returns err as an Error.
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
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = "resource_exhausted"
	case ofNetwork(err):
		code = "unavailable"
	}
	return &Error{Code: code, Message: Text(err)}
}

// ofNetwork reports whether err is an error of the network. An error of a file never is, not even
// one of a file that is being sent, which net/http returns as an *url.Error. syscall.Errno has the
// methods of net.Error, whichever system call it comes from.
func ofNetwork(err error) bool {
	var file *fs.PathError
	var files *os.LinkError
	if errors.As(err, &file) || errors.As(err, &files) {
		return false
	}
	var network net.Error
	var number syscall.Errno
	var op *net.OpError
	var request *url.Error
	return errors.As(err, &op) || errors.As(err, &request) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &network) && !errors.As(err, &number)
}

// Status returns the HTTP status of e.
func (e *Error) Status() int {
	for _, c := range categories {
		if c.code == e.Code {
			return c.status
		}
	}
	return http.StatusInternalServerError
}

// silent are the categories whose name adds nothing to a message that already describes the
// problem. A category that is the whole message remains: "model x: not found".
var silent = []error{
	errdefs.ErrInvalidArgument, errdefs.ErrNotImplemented, errdefs.ErrUnavailable, errdefs.ErrDataLoss,
	errdefs.ErrFailedPrecondition, errdefs.ErrAlreadyExists, errdefs.ErrResourceExhausted, errdefs.ErrAborted,
	errdefs.ErrUnknown, errdefs.ErrOutOfRange,
}

// spoken match lines that say what the category after them says.
var spoken = map[error]*regexp.Regexp{
	errdefs.ErrNotFound:         regexp.MustCompile(`(?i)(^| )(no|not|none) |(not found|no such .*)$`),
	errdefs.ErrPermissionDenied: regexp.MustCompile(` root\b| refused|permission denied$`),
}

// Text returns the text of err for users: without the categories of errdefs at the ends of its
// lines. "invalid argument" remains where it is the text of the kernel's EINVAL.
func Text(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = withoutCategories(lines[i], err)
	}
	return strings.Join(lines, "\n")
}

func withoutCategories(line string, err error) string {
	for category, said := range spoken {
		if rest, ok := strings.CutSuffix(line, ": "+category.Error()); ok && errors.Is(err, category) && said.MatchString(rest) {
			line = rest
		}
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

// An about is an error prefixed with its subject once.
type about struct {
	name string
	err  error
}

// About returns an error with the text "name: err", without repeating the name if err has it
// already.
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
