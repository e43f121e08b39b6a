package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A server is a registry for pulls and pushes.
type server struct {
	*httptest.Server

	mu        sync.Mutex // guards the fields below
	blobs     map[string]map[digest.Digest][]byte
	manifests map[string][]byte // by repository:tag
	uploads   map[string][]byte
	next      int
	seen      []string

	user    string         // required credentials, "user:secret"
	refuse  int            // status of every write request
	noMount bool           // mounts start an upload instead
	spoil   digest.Digest  // is served with a wrong byte
	fail    map[string]int // method and end of a path → how many requests get a 503
	foreign string         // host that uploads continue on
	discard bool           // bytes are hashed, not kept
	subject bool           // it keeps lists of referrers itself
	lists   map[string][]ocispec.Descriptor
}

func newServer(t testing.TB) *server {
	s := &server{blobs: map[string]map[digest.Digest][]byte{}, manifests: map[string][]byte{}, uploads: map[string][]byte{}, fail: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) host() string { return strings.TrimPrefix(s.URL, "http://") }

// add adds an artifact to a repository.
func (s *server) add(repository, tag string, b *converttest.Built) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, p := range b.Blobs {
		s.blob(repository)[d] = p
	}
	s.manifests[repository+":"+tag] = b.Manifest
	return s.host() + "/" + repository + ":" + tag
}

func (s *server) blob(repository string) map[digest.Digest][]byte {
	if s.blobs[repository] == nil {
		s.blobs[repository] = map[digest.Digest][]byte{}
	}
	return s.blobs[repository]
}

// alias serves a tag by its digest too, and returns that.
func (s *server) alias(repository, tag string) string {
	p := s.manifest(repository + ":" + tag)
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digest.FromBytes(p).String()
	s.manifests[repository+":"+d] = p
	return d
}

// requests returns the number of requests since the last call that begin with prefix.
func (s *server) requests(prefix string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// unfinished returns the number of uploads that were started and not finished.
func (s *server) unfinished() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

func (s *server) manifest(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.manifests[name]
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	user, secret, _ := r.BasicAuth()
	authorised := s.user == "" || user+":"+secret == s.user
	failing := false
	for k, n := range s.fail {
		if method, end, _ := strings.Cut(k, " "); method == r.Method && strings.Contains(r.URL.Path, end) && n > 0 {
			s.fail[k], failing = n-1, true
		}
	}
	refuse := s.refuse
	s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	switch {
	case !authorised:
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
	case failing:
		w.WriteHeader(http.StatusServiceUnavailable)
	case changes && refuse != 0:
		http.Error(w, `{"errors":[{"code":"DENIED","message":"not yours"}]}`, refuse)
	case strings.HasSuffix(path, "/blobs/uploads/"):
		s.begin(w, r, strings.TrimSuffix(path, "/blobs/uploads/"))
	case strings.Contains(path, "/blobs/uploads/"):
		repository, id, _ := strings.Cut(path, "/blobs/uploads/")
		s.upload(w, r, repository, id)
	case strings.Contains(path, "/blobs/"):
		repository, d, _ := strings.Cut(path, "/blobs/")
		s.serveBlob(w, r, repository, digest.Digest(d))
	case strings.Contains(path, "/referrers/") && s.subject:
		s.mu.Lock()
		defer s.mu.Unlock()
		json.NewEncoder(w).Encode(ocispec.Index{Manifests: s.lists[path]})
	default:
		repository, tag, _ := strings.Cut(path, "/manifests/")
		s.serveManifest(w, r, repository, tag)
	}
}

func (s *server) begin(w http.ResponseWriter, r *http.Request, repository string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	if p, ok := s.blob(q.Get("from"))[digest.Digest(q.Get("mount"))]; ok && !s.noMount {
		s.blob(repository)[digest.Digest(q.Get("mount"))] = p
		w.WriteHeader(http.StatusCreated)
		return
	}
	s.next++
	id := fmt.Sprint(s.next)
	s.uploads[id] = nil
	w.Header().Set("Location", s.foreign+"/v2/"+repository+"/blobs/uploads/"+id+"?state=x")
	w.WriteHeader(http.StatusAccepted)
}

func (s *server) upload(w http.ResponseWriter, r *http.Request, repository, id string) {
	if s.discard {
		h := digest.SHA256.Digester()
		if _, err := io.Copy(h.Hash(), r.Body); err != nil || h.Digest().String() != r.URL.Query().Get("digest") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusCreated)
		return
	}
	p, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.uploads[id]
	if err != nil || !ok || r.URL.Query().Get("state") != "x" {
		http.Error(w, "no", http.StatusNotFound)
		return
	}
	have = append(have, p...)
	if r.Method == http.MethodPatch {
		s.uploads[id] = have
		w.Header().Set("Location", r.URL.RequestURI())
		w.WriteHeader(http.StatusAccepted)
		return
	}
	delete(s.uploads, id)
	d := digest.Digest(r.URL.Query().Get("digest"))
	if digest.FromBytes(have) != d {
		http.Error(w, `{"errors":[{"code":"DIGEST_INVALID"}]}`, http.StatusBadRequest)
		return
	}
	s.blob(repository)[d] = have
	w.WriteHeader(http.StatusCreated)
}

func (s *server) serveBlob(w http.ResponseWriter, r *http.Request, repository string, d digest.Digest) {
	s.mu.Lock()
	p, ok := s.blob(repository)[d]
	if d == s.spoil && len(p) > 0 {
		p = bytes.Clone(p)
		p[len(p)/2] ^= 1
	}
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
}

func (s *server) serveManifest(w http.ResponseWriter, r *http.Request, repository, tag string) {
	if r.Method == http.MethodPut {
		p, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.manifests[repository+":"+tag] = p
		var m ocispec.Manifest
		if err := json.Unmarshal(p, &m); err == nil && m.Subject != nil && s.subject {
			w.Header().Set("OCI-Subject", m.Subject.Digest.String())
			key := repository + "/referrers/" + m.Subject.Digest.String()
			desc := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(p), Size: int64(len(p)), ArtifactType: m.ArtifactType, Annotations: m.Annotations}
			if s.lists == nil {
				s.lists = map[string][]ocispec.Descriptor{}
			}
			s.lists[key] = append(slices.DeleteFunc(s.lists[key], func(d ocispec.Descriptor) bool { return d.Digest == desc.Digest }), desc)
		}
		w.WriteHeader(http.StatusCreated)
		return
	}
	p := s.manifest(repository + ":" + tag)
	if p == nil {
		http.NotFound(w, r)
		return
	}
	w.Write(p)
}

// client returns a client of registries on this machine.
func client(t testing.TB, creds remote.Credentials) *remote.Client {
	t.Helper()
	c, err := remote.New(remote.Options{Credentials: func(string, string) (remote.Credentials, error) { return creds, nil }, Shared: remote.AnyHost, Stall: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
