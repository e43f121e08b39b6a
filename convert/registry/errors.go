package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/ballast-dev/ballast/convert/signature"
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

// A PinError says that a digest is that of a model upstream, which is never served as it is.
// errors.Is(err, errdefs.ErrFailedPrecondition) holds for it.
type PinError struct {
	Name      string        // host/repository
	Origin    digest.Digest // what was asked for
	Converted digest.Digest // what to ask for
}

func (e *PinError) Error() string {
	return fmt.Sprintf("%s@%s is a model as its registry has it, which containerd can not mount; pin the converted image instead: %s@%s",
		e.Name, e.Origin, e.Name, e.Converted)
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

// writeError answers with an error.
func (h *Handler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens
	}
	h.count(err)
	e := refusalOf(err)
	level := h.log().Debug
	if _, unsigned := errors.AsType[*signature.Refusal](err); unsigned || e.status >= http.StatusInternalServerError {
		level = h.log().Warn
	}
	level("request refused", "path", r.URL.Path, "ns", r.URL.Query().Get("ns"), "status", e.status, "err", err)
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="ballast"`)
	}
	if ra, ok := errors.AsType[*transfer.RetryAfterError](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(ra.After.Seconds()))))
	}
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
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		w.Write(body) // the answer is over
	}
}
