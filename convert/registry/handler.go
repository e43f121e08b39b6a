package registry

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"
)

// A Handler is the facade. Upstream and Store are required; other fields of a literal can be zero.
// It must not be copied after first use.
type Handler struct {
	resolve.Resolver
	Store *store.Store

	// Origins allows models to be pulled by their original digest if they can be shown; see Origin.
	Origins bool

	// Secrets keeps the working credentials of callers; nil keeps them in memory.
	Secrets *pullsecret.Secrets

	// Pulled is called when the manifest of a model converted here is requested; may be nil.
	Pulled func(ctx context.Context, im store.Image)

	// Signatures decides which models are served and converted; nil allows all.
	Signatures *signature.Checker

	// ShownEarly reports whether a table is already shown and not complete, so that containerd may
	// not apply it again; nil means never.
	ShownEarly func(ctx context.Context, table digest.Digest) (bool, error)

	// Refused is called with the name of a limit when a request exceeds it; may be nil.
	Refused func(limit string)

	// Log is the logger; nil discards.
	Log *slog.Logger

	requests budget // memory of resolutions and conversions
	children budget // the same for entries of indexes, whose index holds memory of requests

	mu       sync.Mutex
	flights  map[flightKey]*flight  // guarded by mu
	searched map[name]*rate.Limiter // guarded by mu: searches of repositories, and of all of a host, whose name has no repository
	archives archives

	own pullsecret.Secrets // used if Secrets is nil

	tokens tokens // of callers
	holds  holds  // of tags

	closed   cache[name, bool]                 // whether a repository needs credentials
	readable cache[accessKey, bool]            // callers that can read an origin
	built    cache[digest.Digest, []byte]      // manifests converted here
	recent   cache[accessKey, remote.Manifest] // manifests that passed unchanged
	missing  cache[accessKey, bool]            // digests that were not found
	walked   cache[accessKey, bool]            // repositories whose tags were searched, and whether some could not be read; without a digest
	asked    cache[name, bool]                 // repositories for which callers were asked for credentials
}

// HeaderNext is a request header of clients that can ask the registry themselves for blobs that the
// facade does not have, so that layers of ordinary images take no detour.
const HeaderNext = "Ballast-Next"

// A name is a host and a repository.
type name struct{ host, repository string }

// String returns "host/repository".
func (n name) String() string { return n.host + "/" + n.repository }

func nameOf(ref remote.Ref) name { return name{ref.Host, ref.Repository} }

// A caller is the sender of a request. The zero value has no credentials.
type caller struct {
	creds remote.Credentials
	given bool // creds are set, but can be empty
	node  bool // the node itself, with its own credentials
}

// with returns the caller with credentials.
func with(c remote.Credentials) caller { return caller{creds: c, given: true} }

// anonymous reports whether c has no credentials.
func (c caller) anonymous() bool { return !c.given && !c.node }

// repository returns the repository of ref with the credentials of c.
func (c caller) repository(client *remote.Client, ref remote.Ref) (*remote.Repository, error) {
	switch {
	case c.node:
		return client.NodeRepository(ref)
	case c.given:
		return client.Repository(ref, &c.creds)
	}
	return client.Repository(ref, nil)
}

// An accessKey is a digest, or "", in a repository, for one caller.
type accessKey struct {
	name   name
	digest digest.Digest
	caller caller
}

func (h *Handler) secrets() *pullsecret.Secrets {
	if h.Secrets == nil {
		return &h.own
	}
	return h.Secrets
}

func (h *Handler) log() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if r.URL.Path == tokenPath {
		h.serveToken(w, r)
		return
	}
	if err := h.serve(w, r); err != nil {
		h.writeError(w, r, err)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	for _, v := range r.Header.Values("Via") {
		if strings.Contains(v, remote.Via) {
			return &refusal{status: http.StatusLoopDetected, code: codeUnsupported,
				text: "the request was sent by ballast itself; remove this address from the hosts.toml that ballastd reads"}
		}
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return &refusal{status: http.StatusMethodNotAllowed, code: codeUnsupported, text: "the facade is read-only"}
	}
	if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
		w.Header().Set("Content-Type", "application/json")
		_, err := w.Write([]byte("{}"))
		return err
	}
	t, err := parseTarget(r.URL)
	if err != nil {
		return err
	}
	as, err := h.callerOf(r, nameOf(t.ref))
	if err != nil {
		return err
	}
	if r.Header.Get("Authorization") == "" && h.Upstream.Challenges(t.ref.Host) {
		return &refusal{status: http.StatusUnauthorized, code: codeUnauthorized, text: t.ref.Host + " asks for a token, and so does the facade"}
	}
	if t.blob {
		return h.serveBlob(w, r, t.ref, as)
	}
	if err := h.serveManifest(w, r, t.ref, as); err != nil {
		return &manifestError{err, r.URL.Query().Has("ns"), t.ref.Digest != ""}
	}
	return nil
}

// A target is the object of a request.
type target struct {
	ref  remote.Ref
	blob bool // ref.Digest is the digest of a blob
}

// parseTarget parses the URL of a request.
func parseTarget(u *url.URL) (target, error) {
	rest, ok := strings.CutPrefix(u.Path, "/v2/")
	if !ok {
		return target{}, notFound("only paths below /v2/ exist")
	}
	var t target
	repository, object, ok := cutLast(rest, "/manifests/")
	if b, o, isBlob := cutLast(rest, "/blobs/"); isBlob && (!ok || len(b) > len(repository)) {
		repository, object, ok, t.blob = b, o, true, true
	}
	if !ok {
		return target{}, notFound("only manifests and blobs can be read here")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return target{}, badName("the query is not well-formed")
	}
	host := ""
	switch ns := query["ns"]; {
	case len(ns) > 1:
		return target{}, badName("more than one ns parameter")
	case len(ns) == 1:
		host = ns[0]
	default:
		first, others, _ := strings.Cut(repository, "/")
		if !strings.ContainsAny(first, ".:") && first != "localhost" {
			return target{}, badName("no upstream registry: ask through hosts.toml (which adds ?ns=<host>), or with the host as first component of the repository")
		}
		host, repository = first, others
	}
	if t.blob && !strings.Contains(object, ":") {
		return target{}, badName("a blob is named by its digest")
	}
	if t.ref, err = remote.NewRef(host, repository, object); err != nil {
		return target{}, err
	}
	return t, nil
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+len(sep):], true
}
