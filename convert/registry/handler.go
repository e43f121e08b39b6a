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
)

// A Handler is the facade. Upstream and Store must be set; the rest of a literal can
// be zero. It must not be copied after first use.
type Handler struct {
	resolve.Resolver
	Store *store.Store

	// Origins lets models be pulled by the digest that their registry gives them, where they can be shown
	// nevertheless; see Origin.
	Origins bool

	// Hints returns what other nodes made an image of; nil: nobody is asked.
	Hints func(ctx context.Context, converted digest.Digest) []Hint

	// Secrets keeps the credentials of callers that worked; nil keeps them in memory.
	Secrets *pullsecret.Secrets

	// Pulled is called when somebody asks for the manifest of a model that was made here; nil does
	// nothing.
	Pulled func(ctx context.Context, im store.Image)

	// Signatures says which models are answered, and converted for others; nil: all.
	Signatures *signature.Checker

	// Shown says whether a table is shown already, so that containerd may apply none of it again; nil: none is.
	Shown func(ctx context.Context, table digest.Digest) (bool, error)

	// Refused is called with the name of a limit when it has refused something; nil does nothing.
	Refused func(limit string)

	// Log is where the facade reports; nil discards.
	Log *slog.Logger

	requests budget // memory of what is resolved and converted
	children budget // the same of entries of indexes, whose index holds some of requests

	mu      sync.Mutex
	flights map[string]*flight // guarded by mu; see flightKey
	cartons cartons

	own pullsecret.Secrets // if Secrets is nil

	closed   cache[name, bool]                 // repositories that need credentials
	readable cache[verdictKey, bool]           // who can read which origin
	built    cache[digest.Digest, []byte]      // manifests that were made here
	recent   cache[recentKey, remote.Manifest] // that passed unchanged
	missing  cache[recentKey, bool]            // digests that were not found
	walked   cache[recentKey, bool]            // repositories whose tags were looked through; without a digest
}

// HeaderNext is a header of who can ask the registry itself next, for the blobs that the facade does not
// have. So layers of ordinary images take no detour.
const HeaderNext = "Ballast-Next"

// name is a host and a repository.
type name struct{ host, repository string }

// String returns "host/repository".
func (n name) String() string { return n.host + "/" + n.repository }

func nameOf(ref remote.Ref) name { return name{ref.Host, ref.Repository} }

// caller is who asks. The zero value has no credentials.
type caller struct {
	creds *remote.Credentials
	node  bool // the node itself, with its own credentials; then creds is nil
}

// anonymous says whether c has no credentials to give.
func (c caller) anonymous() bool { return c.creds == nil && !c.node }

// repository returns the repository of ref as c sees it.
func (c caller) repository(client *remote.Client, ref remote.Ref) (*remote.Repository, error) {
	if c.node {
		return client.NodeRepository(ref)
	}
	return client.Repository(ref, c.creds)
}

// key returns c as something that can be compared.
func (c caller) key() callerKey {
	if c.creds == nil {
		return callerKey{node: c.node}
	}
	return callerKey{*c.creds, true, false}
}

type callerKey struct {
	creds remote.Credentials
	ok    bool
	node  bool
}

type verdictKey struct {
	name   name
	origin digest.Digest
	who    callerKey
}

type recentKey struct {
	name   name
	digest digest.Digest
	who    callerKey
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

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if err := h.serve(w, r); err != nil {
		h.writeError(w, r, err)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	for _, v := range r.Header.Values("Via") {
		if strings.Contains(v, remote.Via) {
			return &refusal{status: http.StatusLoopDetected, code: codeUnsupported,
				text: "the request was sent by ballast itself; take this address out of the hosts.toml that the daemon reads"}
		}
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return &refusal{status: http.StatusMethodNotAllowed, code: codeUnsupported, text: "nothing can be pushed or deleted here"}
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
	var who caller
	if user, secret, ok := r.BasicAuth(); ok {
		who.creds = &remote.Credentials{Username: user, Secret: secret}
	}
	if t.blob {
		return h.serveBlob(w, r, t.ref, who)
	}
	err = h.serveManifest(w, r, t.ref, who)
	if err != nil && r.URL.Query().Has("ns") {
		return manifestError{err}
	}
	return err
}

// A target is what a request asks for.
type target struct {
	ref  remote.Ref
	blob bool // ref.Digest is that of a blob
}

// parseTarget parses the address of a request.
func parseTarget(u *url.URL) (target, error) {
	rest, ok := strings.CutPrefix(u.Path, "/v2/")
	if !ok {
		return target{}, notFound("there is nothing outside of /v2/")
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
		return target{}, badName("more than one ns")
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
		return target{}, badName("blobs have digests")
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
