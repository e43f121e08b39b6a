package huggingface

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Host is the host of references to repositories of the Hub (hostname.Normal).
const Host = "hf.co"

// DefaultEndpoint is the URL of the Hub.
const DefaultEndpoint = "https://huggingface.co"

// TokenUser is the user name for a token, which has none of its own.
const TokenUser = "hf"

// Limits of the manifests that a Hub remembers, in number and in total bytes. A manifest has at
// most convert.MaxManifestSize.
const (
	maxSnapshots = 64
	maxKept      = 32 << 20
)

var _ remote.Dialect = (*Hub)(nil)

// A Hub answers requests of the distribution API with the API of the Hub. All methods are safe for
// concurrent use.
type Hub struct {
	endpoint *url.URL
	digests  digests

	mu        sync.Mutex
	snapshots []*snapshot // guarded by mu; least recently used first
}

// New returns the Hub at an endpoint, such as DefaultEndpoint. It returns
// errdefs.ErrInvalidArgument unless that is an http or https URL.
func New(endpoint string) (*Hub, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%.300q is no URL of a Hub: %w", endpoint, errdefs.ErrInvalidArgument)
	}
	return &Hub{endpoint: u}, nil
}

// Credentials returns a token as credentials; the zero value for an empty one.
func Credentials(token string) remote.Credentials {
	if token == "" {
		return remote.Credentials{}
	}
	return remote.Credentials{Username: TokenUser, Secret: token}
}

// RoundTrip answers one request; see remote.Dialect.
func (h *Hub) RoundTrip(req *http.Request, ways remote.Ways) (*http.Response, error) {
	if req.Method != http.MethodGet {
		return answer(req, http.StatusMethodNotAllowed, "UNSUPPORTED", "nothing can be pushed to the Hub"), nil
	}
	c := &call{hub: h, ways: ways, from: req}
	if _, secret, ok := req.BasicAuth(); ok {
		c.token = secret
	}
	rest, _ := strings.CutPrefix(req.URL.Path, "/v2/")
	repo, object, manifest := strings.Cut(rest, "/manifests/")
	if !manifest {
		var ok bool
		if repo, object, ok = strings.Cut(rest, "/blobs/"); !ok {
			return answer(req, http.StatusNotFound, "UNSUPPORTED", "the Hub has manifests and blobs"), nil
		}
	}
	if strings.Count(repo, "/") != 1 {
		return answer(req, http.StatusNotFound, "NAME_UNKNOWN", "a repository of the Hub is ORG/REPO"), nil
	}
	var resp *http.Response
	var err error
	if manifest {
		resp, err = c.manifest(req.Context(), repo, object)
	} else {
		resp, err = c.blob(req.Context(), repo, digest.Digest(object))
	}
	if e, ok := errors.AsType[*refusal](err); ok {
		return e.answer(req), nil
	}
	if errdefs.IsInvalidArgument(err) { // a retry does not help
		return answer(req, http.StatusPreconditionFailed, "UNSUPPORTED", err.Error()), nil
	}
	return resp, err
}

// Remind adds an earlier manifest of a repository.
func (h *Hub) Remind(repository string, manifest []byte) {
	if s, err := parseSnapshot(repository, manifest); err == nil {
		h.keep(s)
	}
}

// find returns the most recent snapshot of a repository that fits, or nil.
func (h *Hub) find(repo string, fits func(*snapshot) bool) *snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range slices.Backward(h.snapshots) {
		if strings.EqualFold(s.repo, repo) && fits(s) {
			h.snapshots = append(slices.Delete(h.snapshots, i, i+1), s)
			return s
		}
	}
	return nil
}

func (h *Hub) keep(s *snapshot) {
	if h.find(s.repo, func(k *snapshot) bool {
		return k.digest == s.digest && (k.selection == s.selection || s.selection == "")
	}) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.snapshots = append(h.snapshots, s)
	kept := 0
	for i, s := range slices.Backward(h.snapshots) {
		if kept += len(s.manifest); kept > maxKept && i < len(h.snapshots)-1 || len(h.snapshots)-i > maxSnapshots {
			h.snapshots = slices.Delete(h.snapshots, 0, i+1)
			break
		}
	}
}

// manifest answers a request for a manifest.
func (c *call) manifest(ctx context.Context, repo, object string) (*http.Response, error) {
	s, err := c.resolve(ctx, repo, object)
	if err != nil {
		return nil, err
	}
	return content(c.from, mediatype.OCIManifest, s.manifest), nil
}

// resolve returns the snapshot of a tag or of the digest of a manifest, if the client may read its files.
func (c *call) resolve(ctx context.Context, repo, object string) (*snapshot, error) {
	s, err := c.snapshot(ctx, repo, object)
	if err == nil {
		err = c.mayRead(ctx, repo, s)
	}
	return s, err
}

// mayRead returns an error if the client may not read the files of a snapshot. The Hub lists the files of
// a gated repository to everybody, and may give its small ones, so the largest is asked for.
func (c *call) mayRead(ctx context.Context, repo string, s *snapshot) error {
	const ranges = "bytes=0-0"
	resp, err := c.get(ctx, c.file(repo, s.commit, s.largest), ranges)
	if err == nil && resp.Header.Get("X-Repo-Commit") == "" { // where a mirror redirects everybody to, others decide
		resp, err = c.follow(ctx, ranges, resp, err)
	}
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// snapshot returns the snapshot of a tag or of the digest of a manifest.
func (c *call) snapshot(ctx context.Context, repo, object string) (*snapshot, error) {
	if d := digest.Digest(object); strings.Contains(object, ":") {
		s := c.hub.find(repo, func(s *snapshot) bool { return s.digest == d })
		if s == nil {
			return nil, &refusal{status: http.StatusNotFound, code: "MANIFEST_UNKNOWN", message: "the Hub has no digests of manifests; name a commit instead"}
		}
		return s, nil
	}
	revision, quantisation := object, ""
	if object == tagLatest {
		revision, quantisation = mainBranch, anyQuantisation
	}
	commit, err := c.revision(ctx, repo, revision)
	if isNoRevision(err) && isQuantisation(object) {
		quantisation = object
		commit, err = c.revision(ctx, repo, mainBranch)
	}
	if err != nil {
		return nil, err
	}
	selection := commit + " " + quantisation
	if s := c.hub.find(repo, func(s *snapshot) bool { return s.selection == selection }); s != nil {
		return s, nil
	}
	files, err := c.tree(ctx, repo, commit)
	if err == nil {
		files, err = choose(files, quantisation)
	}
	if err == nil {
		err = c.hash(ctx, repo, commit, files)
	}
	if err != nil {
		return nil, err
	}
	s, err := newSnapshot(repo, commit, files)
	if err != nil {
		return nil, err
	}
	s.selection = selection
	c.hub.keep(s)
	return s, nil
}

// blob answers a request for a file, or for the generated config: with the response of the Hub,
// which can be a redirect to another host.
func (c *call) blob(ctx context.Context, repo string, d digest.Digest) (*http.Response, error) {
	s := c.hub.find(repo, func(s *snapshot) bool { return s.paths[d] != "" || s.configDigest == d })
	if s == nil {
		return nil, &refusal{status: http.StatusNotFound, code: "BLOB_UNKNOWN", message: "no manifest that is known names it"}
	}
	if s.paths[d] == "" {
		if err := c.mayRead(ctx, repo, s); err != nil {
			return nil, err
		}
		return content(c.from, mediatype.ModelPackConfig, s.config), nil
	}
	resp, err := c.get(ctx, c.file(repo, s.commit, s.paths[d]), c.from.Header.Get("Range"))
	if err != nil {
		return nil, err
	}
	if at := resp.Header.Get("X-Repo-Commit"); at != "" && at != s.commit {
		resp.Body.Close()
		return nil, fmt.Errorf("the Hub answered with commit %.40q, not %s: %w", at, s.commit, errdefs.ErrUnavailable)
	}
	return resp, nil
}

// content returns a response with bytes.
func content(req *http.Request, mediaType string, p []byte) *http.Response {
	h := http.Header{"Content-Type": {mediaType}}
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h,
		Body: io.NopCloser(bytes.NewReader(p)), ContentLength: int64(len(p)), Request: req,
	}
}

// answer returns a response with an error in the format of the distribution specification.
func answer(req *http.Request, status int, code, message string) *http.Response {
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	p, err := json.Marshal(map[string][]item{"errors": {{code, message}}})
	if err != nil {
		panic("huggingface: internal error: " + err.Error()) // strings can be encoded
	}
	resp := content(req, "application/json", p)
	resp.StatusCode, resp.Status = status, fmt.Sprintf("%d %s", status, http.StatusText(status))
	if status == http.StatusUnauthorized || status == http.StatusTooManyRequests { // a token has a limit of its own
		resp.Header.Set("WWW-Authenticate", `Basic realm="huggingface"`)
	}
	return resp
}
