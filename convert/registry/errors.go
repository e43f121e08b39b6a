package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Error codes.
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
	codeUnavailable     = "UNAVAILABLE" // not in the specification, but known to containerd
	codeUnknown         = "UNKNOWN"
	codeUnsupported     = "UNSUPPORTED"
)

// A refusal is an error with the response to send.
type refusal struct {
	status int
	code   string
	text   string
	err    error // of upstream; nil if credentials change nothing
}

func (e *refusal) Error() string { return e.text }

// Unwrap returns the error of upstream.
func (e *refusal) Unwrap() error { return e.err }

func notFound(text string) error {
	return &refusal{status: http.StatusNotFound, code: codeNameUnknown, text: text}
}

func badName(text string) error {
	return &refusal{status: http.StatusBadRequest, code: codeNameInvalid, text: text}
}

// A PinError reports that a digest is the original digest of a model that cannot be mounted in its
// original form. It matches errdefs.ErrFailedPrecondition.
type PinError struct {
	Name      string        // host/repository
	Origin    digest.Digest // the requested digest
	Converted digest.Digest // the digest to request instead
	Reason    string        // why not
}

func (e *PinError) Error() string {
	return fmt.Sprintf("%s@%s is a model in its original form, which cannot be mounted here (%s); pin the converted image instead: %s@%s",
		e.Name, e.Origin, e.Reason, e.Name, e.Converted)
}

// Unwrap returns errdefs.ErrFailedPrecondition.
func (e *PinError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// refusalOf returns the response for an error of upstream, of a parser or of the store.
func refusalOf(err error) *refusal {
	if e, ok := errors.AsType[*refusal](err); ok {
		return e
	}
	text := err.Error()
	if _, ok := errors.AsType[*transfer.RetryAfterError](err); ok {
		return &refusal{status: http.StatusTooManyRequests, code: codeTooMany, text: text}
	}
	for _, c := range categories {
		if c.is(err) {
			return &refusal{status: c.status, code: c.code, text: text}
		}
	}
	return &refusal{status: http.StatusBadGateway, code: codeUnknown, text: text}
}

// categories are the categories of errors with their responses, by precedence. The text of a
// category adds nothing for people to the text before it.
var categories = []struct {
	is     func(error) bool
	text   error
	status int
	code   string
}{
	{errdefs.IsUnauthorized, errdefs.ErrUnauthenticated, http.StatusUnauthorized, codeUnauthorized},
	{errdefs.IsPermissionDenied, errdefs.ErrPermissionDenied, http.StatusForbidden, codeDenied},
	{errdefs.IsNotImplemented, errdefs.ErrNotImplemented, http.StatusForbidden, codeUnsupported},
	{errdefs.IsDataLoss, errdefs.ErrDataLoss, http.StatusBadGateway, codeManifestInvalid},
	{errdefs.IsFailedPrecondition, errdefs.ErrFailedPrecondition, http.StatusForbidden, codeDenied},
	{errdefs.IsInvalidArgument, errdefs.ErrInvalidArgument, http.StatusForbidden, codeManifestInvalid},
	{errdefs.IsOutOfRange, errdefs.ErrOutOfRange, http.StatusRequestedRangeNotSatisfiable, codeUnknown},
	{errdefs.IsNotFound, errdefs.ErrNotFound, http.StatusNotFound, codeManifestUnknown},
	{errdefs.IsResourceExhausted, errdefs.ErrResourceExhausted, http.StatusInsufficientStorage, codeUnknown},
	{errdefs.IsUnavailable, errdefs.ErrUnavailable, http.StatusBadGateway, codeUnknown},
	{errdefs.IsUnknown, errdefs.ErrUnknown, http.StatusBadGateway, codeUnknown},
}

// A manifestError is an error of a manifest request.
type manifestError struct {
	error
	mirror   bool // it came through hosts.toml
	byDigest bool
}

// Unwrap returns the error.
func (e *manifestError) Unwrap() error { return e.error }

// answer returns the response. containerd requests the head of a manifest, which has no text, and
// shows only the status, except for a 403: then it requests the text. To show the cause in pod
// events, every response is a 403, except those that containerd acts upon.
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/resolver.go
func (e *manifestError) answer() *refusal {
	r := *refusalOf(e.error)
	for _, c := range categories {
		r.text = strings.TrimSuffix(r.text, ": "+c.text.Error())
	}
	if advice := adviceOf(e.error); advice != "" {
		r.text += "; " + advice
	}
	_, limit := errors.AsType[*filetable.LimitError](e.error)
	switch {
	case r.status == http.StatusUnauthorized, r.status == http.StatusNotFound:
		return &r
	case r.status == http.StatusTooManyRequests && limit: // containerd retries here at once
		return &r
	case r.status >= http.StatusInternalServerError, r.status == http.StatusTooManyRequests:
		r.code = codeUnavailable
	case r.code != codeDenied:
		r.code = codeUnsupported
	}
	r.status = http.StatusForbidden
	return &r
}

// adviceOf returns what to do about an error without advice, "" if unknown.
func adviceOf(err error) string {
	_, artifact := errors.AsType[*format.ArtifactError](err)
	_, limit := errors.AsType[*filetable.LimitError](err)
	switch {
	case !artifact || limit:
		return ""
	case errdefs.IsNotImplemented(err):
		return "this version of ballast cannot mount it"
	case errdefs.IsInvalidArgument(err):
		return "the artifact is invalid; its author must correct it"
	}
	return ""
}

// isFinal reports whether an error is about the model itself, so that other hosts cannot serve it
// either.
func isFinal(err error) bool {
	_, pin := errors.AsType[*PinError](err)
	_, unsigned := errors.AsType[*signature.Refusal](err)
	return pin || unsigned || errdefs.IsNotImplemented(err)
}

// changesWithSecret reports whether credentials can lead to another answer than err.
func changesWithSecret(err error) bool {
	_, limit := errors.AsType[*remote.AnonymousLimit](err)
	_, own := errors.AsType[*filetable.LimitError](err)
	return !isFinal(err) && !own && (limit || isRefusal(err))
}

// isRefusal reports whether upstream refuses or hides something, perhaps only from these credentials.
func isRefusal(err error) bool {
	return errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) || errdefs.IsNotFound(err)
}

// writeError responds with an error. Whatever credentials may change is a challenge (token.go) to a request that has
// none.
//
// If a host refuses a manifest by digest, containerd asks the next host, which would serve the
// original model. It does not if HEAD succeeds without a length and the GET that follows is
// refused.
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/resolver.go
func (h *Handler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	m, ok := errors.AsType[*manifestError](err)
	if ok && m.byDigest && isFinal(err) && r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	h.count(err)
	e := refusalOf(err)
	level := h.log().Debug
	if _, unsigned := errors.AsType[*signature.Refusal](err); unsigned || e.status >= http.StatusInternalServerError {
		level = h.log().Warn
	}
	if ok && m.mirror {
		e = m.answer()
	}
	if r.Header.Get("Authorization") == "" && changesWithSecret(err) {
		e = &refusal{status: http.StatusUnauthorized, code: codeUnauthorized, text: e.text}
	}
	level("request refused", "path", r.URL.Path, "ns", r.URL.Query().Get("ns"), "status", e.status, "err", err)
	if e.status == http.StatusUnauthorized {
		if t, err := parseTarget(r.URL); err == nil {
			h.asked.put(nameOf(t.ref), true)
		}
		w.Header().Set("WWW-Authenticate", challenge(r, e.text))
	}
	if ra, ok := errors.AsType[*transfer.RetryAfterError](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(ra.After.Seconds()))))
	}
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, encodeErr := json.Marshal(map[string][]item{"errors": {{e.code, e.text}}})
	if encodeErr != nil {
		panic("registry: internal error: " + encodeErr.Error()) // strings can be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	if pin, ok := errors.AsType[*PinError](err); ok {
		w.Header().Set("Content-Type", mediatype.UseInstead+pin.Converted.String())
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		w.Write(body) // errors are ignored: the request is done
	}
}
