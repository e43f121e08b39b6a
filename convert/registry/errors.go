package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// The codes of errors.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#error-codes
const (
	codeBlobUnknown     = "BLOB_UNKNOWN"
	codeDenied          = "DENIED"
	codeManifestInvalid = "MANIFEST_INVALID"
	codeManifestUnknown = "MANIFEST_UNKNOWN"
	codeNameInvalid     = "NAME_INVALID"
	codeNameUnknown     = "NAME_UNKNOWN"
	codeTooMany         = "TOOMANYREQUESTS"
	codeUnauthorized    = "UNAUTHORIZED"
	codeUnavailable     = "UNAVAILABLE" // not of the specification; containerd knows it
	codeUnknown         = "UNKNOWN"
	codeUnsupported     = "UNSUPPORTED"
)

// A refusal is an error with the answer it gives.
type refusal struct {
	status int
	code   string
	text   string
}

func (e *refusal) Error() string { return e.text }

func notFound(text string) error {
	return &refusal{status: http.StatusNotFound, code: codeNameUnknown, text: text}
}

func badName(text string) error {
	return &refusal{status: http.StatusBadRequest, code: codeNameInvalid, text: text}
}

// A PinError says that a digest is that of a model upstream, which can not be mounted as it is.
// errors.Is(err, errdefs.ErrFailedPrecondition) holds for it.
type PinError struct {
	Name      string        // host/repository
	Origin    digest.Digest // what was asked for
	Converted digest.Digest // what to ask for
	Reason    string        // why not
}

func (e *PinError) Error() string {
	return fmt.Sprintf("%s@%s is a model as its registry has it, which can not be mounted here (%s); pin the converted image instead: %s@%s",
		e.Name, e.Origin, e.Reason, e.Name, e.Converted)
}

// Unwrap returns errdefs.ErrFailedPrecondition.
func (e *PinError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// refusalOf returns the answer to an error of upstream, of a parser or of the store.
func refusalOf(err error) *refusal {
	if e, ok := errors.AsType[*refusal](err); ok {
		return e
	}
	text := err.Error()
	if _, ok := errors.AsType[*transfer.RetryAfterError](err); ok {
		return &refusal{http.StatusTooManyRequests, codeTooMany, text}
	}
	switch {
	case errdefs.IsUnauthorized(err):
		return &refusal{http.StatusUnauthorized, codeUnauthorized, text}
	case errdefs.IsPermissionDenied(err):
		return &refusal{http.StatusForbidden, codeDenied, text}
	case errdefs.IsNotImplemented(err):
		return &refusal{http.StatusForbidden, codeUnsupported, text}
	case errdefs.IsDataLoss(err):
		return &refusal{http.StatusBadGateway, codeManifestInvalid, text}
	case errdefs.IsFailedPrecondition(err):
		return &refusal{http.StatusForbidden, codeDenied, text}
	case errdefs.IsInvalidArgument(err):
		return &refusal{http.StatusForbidden, codeManifestInvalid, text}
	case errdefs.IsOutOfRange(err):
		return &refusal{http.StatusRequestedRangeNotSatisfiable, codeUnknown, text}
	case errdefs.IsNotFound(err):
		return &refusal{http.StatusNotFound, codeManifestUnknown, text}
	case errdefs.IsResourceExhausted(err):
		return &refusal{http.StatusInsufficientStorage, codeUnknown, text}
	}
	return &refusal{http.StatusBadGateway, codeUnknown, text}
}

// The categories of errors say nothing to people that the text before them does not.
var categories = []error{
	errdefs.ErrUnauthenticated, errdefs.ErrPermissionDenied, errdefs.ErrNotImplemented, errdefs.ErrDataLoss,
	errdefs.ErrFailedPrecondition, errdefs.ErrInvalidArgument, errdefs.ErrOutOfRange, errdefs.ErrNotFound,
	errdefs.ErrResourceExhausted, errdefs.ErrUnavailable, errdefs.ErrUnknown,
}

// A manifestError is one of a request for a manifest that came through hosts.toml.
type manifestError struct{ error }

// Unwrap returns the error.
func (e manifestError) Unwrap() error { return e.error }

// answer returns what is answered. containerd asks for the head of a manifest, where there is no text, and shows
// people the status only, except of a 403: then it asks for the text. So that the events of a pod say what is
// wrong, each answer is a 403 that containerd does nothing about by itself.
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/resolver.go
func (e manifestError) answer() *refusal {
	r := *refusalOf(e.error)
	for _, c := range categories {
		r.text = strings.TrimSuffix(r.text, ": "+c.Error())
	}
	if advice := adviceOf(e.error); advice != "" {
		r.text += "; " + advice
	}
	_, limit := errors.AsType[*filetable.LimitError](e.error)
	switch {
	case r.status == http.StatusUnauthorized, r.status == http.StatusNotFound:
		return &r
	case r.status == http.StatusTooManyRequests && limit: // it waits here again at once
		return &r
	case r.status >= http.StatusInternalServerError, r.status == http.StatusTooManyRequests:
		r.code = codeUnavailable
	case r.code != codeDenied:
		r.code = codeUnsupported
	}
	r.status = http.StatusForbidden
	return &r
}

// adviceOf says what helps against an error that has no advice; empty if nobody knows.
func adviceOf(err error) string {
	_, artifact := errors.AsType[*resolve.ArtifactError](err)
	_, limit := errors.AsType[*filetable.LimitError](err)
	switch {
	case !artifact || limit:
		return ""
	case errdefs.IsNotImplemented(err):
		return "this version of ballast can not show it"
	case errdefs.IsInvalidArgument(err):
		return "the artifact is broken and has to be pushed again"
	}
	return ""
}

// isFinal says whether an error is about a model itself, so that no other host can do better.
func isFinal(err error) bool {
	_, pin := errors.AsType[*PinError](err)
	_, unsigned := errors.AsType[*signature.Refusal](err)
	return pin || unsigned || errdefs.IsNotImplemented(err)
}

// A finalError is an error that is to end a pull by digest.
type finalError struct{ error }

// Unwrap returns the error.
func (e *finalError) Unwrap() error { return e.error }

// writeError answers with an error.
//
// A manifest that is asked for by digest containerd gets from the next host if one refuses it: that would be the
// model as its registry has it. It does not go on to the next if HEAD says that there is something of a length
// that nobody knows, and GET, which it sends then, refuses.
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/resolver.go
func (h *Handler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens
	}
	if _, ok := errors.AsType[*finalError](err); ok && r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	h.count(err)
	e := refusalOf(err)
	level := h.log().Debug
	if _, unsigned := errors.AsType[*signature.Refusal](err); unsigned || e.status >= http.StatusInternalServerError {
		level = h.log().Warn
	}
	if m, ok := errors.AsType[manifestError](err); ok {
		e = m.answer()
	}
	level("request refused", "path", r.URL.Path, "ns", r.URL.Query().Get("ns"), "status", e.status, "err", err)
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="ballast"`)
	}
	if ra, ok := errors.AsType[*transfer.RetryAfterError](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(ra.After.Seconds()))))
	}
	pin, _ := errors.AsType[*PinError](err)
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, err := json.Marshal(struct {
		Errors []item `json:"errors"`
	}{[]item{{e.code, e.text}}})
	if err != nil {
		panic("registry: internal error: " + err.Error()) // strings can be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	if pin != nil {
		w.Header().Set("Content-Type", mediatype.UseInstead+pin.Converted.String())
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		w.Write(body) // the answer is over
	}
}
