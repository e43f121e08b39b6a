// Package peerstest has stand-ins for the programs that pass blobs between the nodes of a cluster. They answer as
// these do, with their faults, and can be told to have more.
//
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client/src/resource/task.rs
// https://github.com/spegel-org/spegel/blob/v0.7.4/pkg/registry/registry.go
package peerstest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/contentrange"
)

// minPiece is the largest range, in bytes, that Dragonfly leaves to the registry.
const minPiece = 4 << 20

// A Cluster is what the nodes of a Dragonfly have in common: each piece of a blob that one has.
type Cluster struct {
	Origin string // URL of the only registry

	mu     sync.Mutex        // guards the following
	sizes  map[string]int64  // of blobs, by task
	pieces map[string][]byte // by task and offset
	passed int64             // bytes that the registry gave for ranges that are not shared
	shared int64             // bytes that the registry gave for pieces
}

// Passed returns the bytes that the registry gave for requests that are not shared.
func (c *Cluster) Passed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

// Shared returns the bytes that the registry gave for pieces.
func (c *Cluster) Shared() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shared
}

// Dragonfly is the proxy of dfdaemon on a node.
type Dragonfly struct {
	*httptest.Server
	cluster *Cluster

	mu     sync.Mutex // guards the following
	asked  []*http.Request
	faults Faults
}

// Faults are what a stand-in does wrong. The functions are called for each request, one at a time.
type Faults struct {
	Status  func() int     // its own error; 0: none
	Corrupt func(p []byte) // changes the bytes of an answer
}

// NewDragonfly starts a node, which the end of the test stops.
func (c *Cluster) NewDragonfly(t testing.TB) *Dragonfly {
	d := &Dragonfly{cluster: c}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// Break sets the faults.
func (d *Dragonfly) Break(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Asked returns the requests.
func (d *Dragonfly) Asked() []*http.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

func fail(w http.ResponseWriter, kind string, status int, h http.Header) {
	if a := h.Get("WWW-Authenticate"); a != "" {
		w.Header().Set("WWW-Authenticate", a)
	}
	w.Header().Set("X-Dragonfly-Error-Type", kind)
	w.WriteHeader(status)
}

// ServeHTTP implements http.Handler.
func (d *Dragonfly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.asked = append(d.asked, r)
	faults, status := d.faults, 0
	if faults.Status != nil {
		status = faults.Status()
	}
	d.mu.Unlock()
	switch {
	case status != 0:
		fail(w, "proxy", status, nil)
		return
	case r.URL.Query().Get("ns") == "" && r.Header.Get("X-Dragonfly-Registry") == "":
		fail(w, "proxy", http.StatusBadRequest, nil)
		return
	}
	first, n, ranged := int64(0), int64(-1), false
	if h := r.Header.Get("Range"); h != "" {
		var last int64
		if _, err := fmt.Sscanf(h, "bytes=%d-%d", &first, &last); err != nil {
			fail(w, "proxy", http.StatusBadRequest, nil)
			return
		}
		n, ranged = last-first+1, true
	}
	if r.Method != http.MethodGet || r.Header.Get("X-Dragonfly-Use-P2P") != "true" || ranged && n <= minPiece {
		d.pass(w, r)
		return
	}
	task := r.URL.Path
	if r.Header.Get("X-Dragonfly-Enable-Task-ID-Based-Blob-Digest") == "true" {
		task = path.Base(task)
	}
	size, ok := d.cluster.size(w, r, task+" "+r.Header.Get("X-Dragonfly-Piece-Length"))
	if !ok {
		return
	}
	if !ranged {
		n = size
	}
	if size <= minPiece {
		d.pass(w, r)
		return
	}
	p, ok := d.cluster.read(w, r, task+" "+r.Header.Get("X-Dragonfly-Piece-Length"), size, first, min(n, size-first))
	if !ok {
		return
	}
	if faults.Corrupt != nil {
		p = bytes.Clone(p)
		d.mu.Lock()
		faults.Corrupt(p)
		d.mu.Unlock()
	}
	w.Header().Set("X-Dragonfly-Task-Download-Finished", "true")
	if ranged {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+int64(len(p))-1, size))
		w.WriteHeader(http.StatusPartialContent)
	}
	w.Write(p)
}

// origin sends a request with the header of a caller to the registry.
func (c *Cluster) origin(r *http.Request, method, ranges string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), method, c.Origin+r.URL.Path, nil)
	if err != nil {
		return nil, err
	}
	for _, h := range []string{"Authorization", "Accept"} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	return http.DefaultClient.Do(req)
}

// pass answers with what the registry answers.
func (d *Dragonfly) pass(w http.ResponseWriter, r *http.Request) {
	resp, err := d.cluster.origin(r, r.Method, r.Header.Get("Range"))
	if err != nil {
		fail(w, "dfdaemon", http.StatusInternalServerError, nil)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		fail(w, "backend", resp.StatusCode, resp.Header)
		return
	}
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	n, _ := io.Copy(w, resp.Body)
	d.cluster.mu.Lock()
	defer d.cluster.mu.Unlock()
	d.cluster.passed += n
}

// size returns the size of the blob of a task. The registry is asked only for the first request of it: who comes later
// gets the bytes without credentials, or with wrong ones.
func (c *Cluster) size(w http.ResponseWriter, r *http.Request, task string) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.sizes[task]; ok {
		return n, true
	}
	resp, err := c.origin(r, http.MethodHead, "")
	if err != nil {
		fail(w, "dfdaemon", http.StatusInternalServerError, nil)
		return 0, false
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		fail(w, "backend", resp.StatusCode, resp.Header)
		return 0, false
	}
	if c.sizes == nil {
		c.sizes, c.pieces = map[string]int64{}, map[string][]byte{}
	}
	c.sizes[task] = resp.ContentLength
	return resp.ContentLength, true
}

// read returns bytes of a blob. It gets whole pieces.
func (c *Cluster) read(w http.ResponseWriter, r *http.Request, task string, size, first, n int64) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	piece := int64(minPiece)
	if s, ok := strings.CutSuffix(r.Header.Get("X-Dragonfly-Piece-Length"), "mib"); ok {
		fmt.Sscan(s, &piece)
		piece <<= 20
	}
	var out []byte
	for at := first / piece * piece; at < first+n; at += piece {
		key, end := fmt.Sprint(task, at), min(at+piece, size)
		if c.pieces[key] == nil {
			resp, err := c.origin(r, http.MethodGet, fmt.Sprintf("bytes=%d-%d", at, end-1))
			if err != nil {
				fail(w, "dfdaemon", http.StatusInternalServerError, nil)
				return nil, false
			}
			p, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			cr, ok := contentrange.Parse(resp.Header.Get("Content-Range"))
			if err != nil || !ok || cr.First != at || int64(len(p)) != end-at {
				fail(w, "backend", max(resp.StatusCode, http.StatusBadRequest), resp.Header)
				return nil, false
			}
			c.shared += int64(len(p))
			c.pieces[key] = p
		}
		out = append(out, c.pieces[key][max(0, first-at):min(end, first+n)-at]...)
	}
	return out, true
}

// Spegel is the registry of Spegel on a node, with what other nodes have.
type Spegel struct {
	*httptest.Server

	mu     sync.Mutex // guards the following
	blobs  map[string][]byte
	asked  []*http.Request
	faults Faults
}

// NewSpegel starts a registry, which the end of the test stops. Its nodes have complete blobs, by digest.
func NewSpegel(t testing.TB, blobs map[string][]byte) *Spegel {
	s := &Spegel{blobs: blobs}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// Break sets the faults.
func (s *Spegel) Break(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Asked returns the requests.
func (s *Spegel) Asked() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// ServeHTTP implements http.Handler.
func (s *Spegel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r)
	status := 0
	if s.faults.Status != nil {
		status = s.faults.Status()
	}
	blob, corrupt := s.blobs[path.Base(r.URL.Path)], s.faults.Corrupt
	if corrupt != nil {
		blob = bytes.Clone(blob)
		corrupt(blob)
	}
	s.mu.Unlock()
	switch {
	case status != 0:
		w.WriteHeader(status)
	case r.URL.Query().Get("ns") == "", blob == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}
}
