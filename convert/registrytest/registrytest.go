// Package registrytest has a registry over HTTP for tests.
//
// It serves what a test puts at a path, also manifests with wrong digests and media types, and each repository has its
// own blobs. Registries of libraries check more: that of go-containerregistry, for example, computes all digests, does
// not mount blobs, and has one set of them for all repositories.
package registrytest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Server is a registry for pulls and pushes. Its methods may be called while requests run.
type Server struct {
	*httptest.Server

	// Referrers makes it list the referrers of what is pushed; set it before the first request.
	Referrers bool

	sent atomic.Int64

	mu       sync.Mutex         // guards the fields below
	content  map[string]content // by path
	uploads  map[string][]byte  // by path
	users    map[string]string  // by repository
	before   Hook
	requests []*http.Request
}

// A Hook can answer a request itself and return true, or change it. If it sets a Content-Type for a manifest, the
// server sets no other one and no Docker-Content-Digest.
type Hook func(w http.ResponseWriter, r *http.Request) bool

// content is what is at a path.
type content struct {
	bytes     []byte
	mediaType string
}

// New starts a server, which the end of the test closes.
func New(t testing.TB) *Server {
	s := Unstarted()
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// Unstarted returns a server that the caller starts and closes.
func Unstarted() *Server {
	s := &Server{content: map[string]content{}, uploads: map[string][]byte{}, users: map[string]string{}}
	s.Server = httptest.NewUnstartedServer(s)
	return s
}

// Host returns "127.0.0.1:port".
func (s *Server) Host() string { return s.Listener.Addr().String() }

// Before sets the hook, or none if it is nil, and returns the previous one.
func (s *Server) Before(h Hook) Hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.before
	s.before = h
	return was
}

// SetUser sets the credentials ("user:password") that a repository requires; none if user is empty.
func (s *Server) SetUser(repository, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[repository] = user; user == "" {
		delete(s.users, repository)
	}
}

// Serve serves bytes at a path.
func (s *Server) Serve(path string, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content[path] = content{bytes: p}
}

// Add adds an artifact to a repository and returns its name.
func (s *Server) Add(repository, tag string, b *converttest.Built) string {
	for d, p := range b.Blobs {
		s.Serve("/v2/"+repository+"/blobs/"+d.String(), p)
	}
	s.Put(repository, tag, b.Manifest, b.MediaType)
	return s.Host() + "/" + repository + ":" + tag
}

// Put serves a manifest by its digest and, if object is not empty, by object, which is a tag or any digest. Without a
// media type, answers have no Docker-Content-Digest either.
func (s *Server) Put(repository, object string, p []byte, mediaType string) digest.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put("/v2/"+repository+"/manifests/"+object, content{p, mediaType})
}

func (s *Server) put(at string, c content) digest.Digest {
	d := digest.FromBytes(c.bytes)
	s.content[at], s.content[path.Dir(at)+"/"+d.String()] = c, c
	return d
}

// PutBlob adds a blob to a repository.
func (s *Server) PutBlob(repository string, p []byte) digest.Digest {
	d := digest.FromBytes(p)
	s.Serve("/v2/"+repository+"/blobs/"+d.String(), p)
	return d
}

// Mount gives a repository all blobs of another one.
func (s *Server) Mount(from, repository string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, c := range maps.Clone(s.content) {
		if d, ok := strings.CutPrefix(path, "/v2/"+from+"/blobs/"); ok {
			s.content["/v2/"+repository+"/blobs/"+d] = c
		}
	}
}

// Manifest returns a manifest, or nil.
func (s *Server) Manifest(repository, object string) []byte {
	return s.at("/v2/" + repository + "/manifests/" + object)
}

// Blob returns a blob, or nil.
func (s *Server) Blob(repository string, d digest.Digest) []byte {
	return s.at("/v2/" + repository + "/blobs/" + d.String())
}

func (s *Server) at(path string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content[path].bytes
}

// Uploads returns the number of uploads that were started and not finished.
func (s *Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

// Sent returns the number of bytes of blobs that were sent.
func (s *Server) Sent() int64 { return s.sent.Load() }

// Requests returns all requests, without their bodies, since the last Count.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns the number of requests whose "METHOD path" has words in it, and forgets all.
func (s *Server) Count(words string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.Contains(r.Method+" "+r.URL.Path, words) {
			n++
		}
	}
	s.requests = nil
	return n
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Clone(context.Background()))
	before := s.before
	s.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch c, status := s.answer(w.Header(), r, body); {
	case status == http.StatusNotFound:
		http.NotFound(w, r)
	case status != http.StatusOK:
		w.WriteHeader(status)
	case strings.Contains(r.URL.Path, "/blobs/"):
		http.ServeContent(counting{w, &s.sent}, r, "", time.Time{}, bytes.NewReader(c.bytes))
	default:
		if c.mediaType != "" && w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", c.mediaType)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(c.bytes).String())
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(c.bytes))
	}
}

type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p))) // before they are there
	return c.ResponseWriter.Write(p)
}

// answer does what a request asks for, and returns what is at its path, or another status than 200.
func (s *Server) answer(h http.Header, r *http.Request, body []byte) (content, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, q := r.URL.Path, r.URL.Query()
	user, password, _ := r.BasicAuth()
	for repository, want := range s.users {
		if strings.HasPrefix(at, "/v2/"+repository+"/") && user+":"+password != want {
			h.Set("WWW-Authenticate", `Basic realm="test"`)
			return content{}, http.StatusUnauthorized
		}
	}
	repository, _, upload := strings.Cut(at, "/blobs/uploads/")
	c, ok := s.content[at]
	switch {
	case upload && r.Method == http.MethodPost:
		if c, ok := s.content["/v2/"+q.Get("from")+"/blobs/"+q.Get("mount")]; ok {
			s.content[repository+"/blobs/"+q.Get("mount")] = c
			return content{}, http.StatusCreated
		}
		at += rand.Text()
		s.uploads[at] = nil
		h.Set("Location", at+"?state=x")
		return content{}, http.StatusAccepted
	case upload:
		have, ok := s.uploads[at]
		if !ok || q.Get("state") != "x" {
			return content{}, http.StatusNotFound
		}
		have = append(have, body...)
		if r.Method == http.MethodPatch {
			s.uploads[at] = have
			h.Set("Location", r.URL.RequestURI())
			return content{}, http.StatusAccepted
		}
		delete(s.uploads, at)
		if digest.FromBytes(have).String() != q.Get("digest") {
			return content{}, http.StatusBadRequest
		}
		s.content[repository+"/blobs/"+q.Get("digest")] = content{bytes: have}
		return content{}, http.StatusCreated
	case r.Method == http.MethodPut:
		d := s.put(at, content{body, r.Header.Get("Content-Type")})
		var m ocispec.Manifest
		if err := json.Unmarshal(body, &m); err == nil && s.Referrers && m.Subject != nil {
			h.Set("OCI-Subject", m.Subject.Digest.String())
			list := path.Join(at, "../../referrers", m.Subject.Digest.String())
			var index ocispec.Index
			_ = json.Unmarshal(s.content[list].bytes, &index)
			index.Manifests = append(slices.DeleteFunc(index.Manifests, func(of ocispec.Descriptor) bool { return of.Digest == d }),
				ocispec.Descriptor{MediaType: m.MediaType, Digest: d, Size: int64(len(body)), ArtifactType: m.ArtifactType, Annotations: m.Annotations})
			p, _ := json.Marshal(index)
			s.content[list] = content{bytes: p}
		}
		return content{}, http.StatusCreated
	case ok:
		return c, http.StatusOK
	case s.Referrers && strings.Contains(at, "/referrers/"):
		return content{bytes: []byte("{}")}, http.StatusOK
	}
	return content{}, http.StatusNotFound
}
