package converttest

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// A HubFile is a file of a repository of the Hub.
type HubFile struct {
	Data []byte
	LFS  bool
}

// A Hub has the API of the Hugging Face Hub that is used to read models. Files in LFS are at another host, which
// must get no credentials.
type Hub struct {
	*httptest.Server
	CDN  *httptest.Server
	Page int // how many entries of a tree one response has: 2, where the real Hub has 1,000

	mu       sync.Mutex
	commits  map[string]map[string]HubFile // by "ORG/REPO@commit"
	branches map[string]string             // the commit, by "ORG/REPO@revision"
	tokens   map[string]string             // that is needed, by repository
	gated    map[string][]string           // tokens of accounts that accepted the conditions, by repository
	limits   map[string]*hubLimit          // by token
	requests []string
	leaked   []string // requests to the other host that had a token
}

// NewHub starts a Hub without repositories.
func NewHub(t testing.TB) *Hub {
	h := &Hub{Page: 2, commits: map[string]map[string]HubFile{}, branches: map[string]string{}, tokens: map[string]string{}, gated: map[string][]string{},
		limits: map[string]*hubLimit{}}
	h.CDN = httptest.NewServer(http.HandlerFunc(h.serveCDN))
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.CDN.Close)
	t.Cleanup(h.Server.Close)
	return h
}

// Push makes a commit of files the one of a revision, and returns it.
func (h *Hub) Push(repo, revision string, files map[string]HubFile) (commit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := sha1.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %s\n", name, gitOID(files[name].Data))
	}
	commit = hex.EncodeToString(sum.Sum(nil))
	h.commits[repo+"@"+commit], h.branches[repo+"@"+revision], h.branches[repo+"@"+commit] = files, commit, commit
	return commit
}

// Protect makes a repository private: for those without the token it does not exist. An empty token makes it public.
func (h *Hub) Protect(repo, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens[repo] = token
}

// Gate makes a repository gated: everybody can list its files, and only those with one of the tokens can read them.
// https://huggingface.co/docs/hub/models-gated
// https://github.com/huggingface/huggingface.js/issues/945
func (h *Hub) Gate(repo string, granted ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gated[repo] = granted
}

// A hubLimit is what is left of a limit.
type hubLimit struct {
	left int
	say  http.Header
}

// Limit makes the Hub refuse requests with a token, or without one, after n more, with a header. A nil header ends the
// limit. The Hub's own has a window of five minutes:
//
//	RateLimit: "resolvers";r=0;t=40
//	RateLimit-Policy: "fixed window";"resolvers";q=3000;w=300
//
// https://huggingface.co/docs/hub/rate-limits
func (h *Hub) Limit(token string, n int, say http.Header) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits[token] = &hubLimit{n, say}
}

// limited reports whether a request is refused.
func (h *Hub) limited(w http.ResponseWriter, token string) bool {
	l := h.limits[token]
	if l == nil || l.say == nil {
		return false
	}
	if l.left--; l.left >= 0 {
		return false
	}
	maps.Copy(w.Header(), l.say)
	w.WriteHeader(http.StatusTooManyRequests)
	return true
}

// Count returns how many requests had s in them, and forgets all.
func (h *Hub) Count(s string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.Contains(r, s) {
			n++
		}
	}
	h.requests = nil
	return n
}

// Leaked returns the requests to the other host that had credentials.
func (h *Hub) Leaked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaked
}

// gitOID returns what git calls a file.
func gitOID(p []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(p)), p...))
	return hex.EncodeToString(sum[:])
}

func (h *Hub) serveCDN(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, "CDN "+r.URL.Path)
	if r.Header.Get("Authorization") != "" {
		h.leaked = append(h.leaked, r.URL.Path)
	}
	for _, files := range h.commits {
		for _, f := range files {
			if f.LFS && r.URL.Path == "/"+digest.FromBytes(f.Data).Encoded() {
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.Data))
				return
			}
		}
	}
	http.NotFound(w, r)
}

// ServeHTTP is the Hub itself.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if h.limited(w, token) {
		h.requests = append(h.requests, "429 "+r.URL.RequestURI())
		return
	}
	h.requests = append(h.requests, r.Method+" "+r.URL.RequestURI())
	rest, api := strings.CutPrefix(r.URL.Path, "/api/models/")
	parts := strings.SplitN(strings.TrimPrefix(rest, "/"), "/", 5)
	if len(parts) < 4 {
		hubError(w, http.StatusNotFound, "RepoNotFound")
		return
	}
	repo := parts[0] + "/" + parts[1]
	granted, gated := h.gated[repo]
	switch {
	case h.tokens[repo] != "" && token != h.tokens[repo]:
		hubError(w, refusedStatus(token, http.StatusNotFound), "RepoNotFound")
		return
	case gated && !api && !slices.Contains(granted, token):
		hubError(w, refusedStatus(token, http.StatusForbidden), "GatedRepo")
		return
	}
	commit := h.branches[repo+"@"+parts[3]]
	files := h.commits[repo+"@"+commit]
	switch {
	case commit == "":
		hubError(w, http.StatusNotFound, "RevisionNotFound")
	case api && parts[2] == "revision":
		json.NewEncoder(w).Encode(map[string]any{"id": repo, "sha": commit, "private": h.tokens[repo] != "", "gated": gated})
	case api && parts[2] == "tree":
		h.tree(w, r, files)
	case !api && parts[2] == "resolve" && len(parts) == 5:
		h.resolve(w, r, commit, files, parts[4])
	default:
		hubError(w, http.StatusNotFound, "EntryNotFound")
	}
}

// refusedStatus returns 401 for a request without a token, otherwise status.
// https://github.com/huggingface/huggingface_hub/blob/v1.2.0/src/huggingface_hub/utils/_http.py
func refusedStatus(token string, status int) int {
	if token == "" {
		return http.StatusUnauthorized
	}
	return status
}

func hubError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", "no "+code)
	w.WriteHeader(status)
}

// tree answers with a page of a tree.
func (h *Hub) tree(w http.ResponseWriter, r *http.Request, files map[string]HubFile) {
	all := []map[string]any{}
	dirs := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if dir, _, ok := strings.Cut(name, "/"); ok && !dirs[dir] {
			dirs[dir] = true
			all = append(all, map[string]any{"type": "directory", "oid": gitOID(nil), "size": 0, "path": dir})
		}
		e := map[string]any{"type": "file", "oid": gitOID(f.Data), "size": len(f.Data), "path": name}
		if f.LFS {
			oid := digest.FromBytes(f.Data).Encoded()
			e["lfs"], e["oid"] = map[string]any{"oid": oid, "size": len(f.Data), "pointerSize": 134}, gitOID([]byte(oid))
		}
		all = append(all, e)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	if to := from + h.Page; to < len(all) {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, h.URL, r.URL.EscapedPath(), to))
		all = all[:to]
	}
	json.NewEncoder(w).Encode(all[from:])
}

// resolve answers with a file, or where it is.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, commit string, files map[string]HubFile, name string) {
	f, ok := files[name]
	if !ok {
		hubError(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if !f.LFS {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.Data))
		return
	}
	sum := digest.FromBytes(f.Data).Encoded()
	w.Header().Set("X-Linked-Etag", `"`+sum+`"`)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.Data)))
	http.Redirect(w, r, h.CDN.URL+"/"+sum, http.StatusFound)
}
