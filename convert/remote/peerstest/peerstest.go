// Package peerstest has stand-ins for the programs that pass blobs between the nodes of a cluster. They answer as
// these do, with their faults, and can be told to have more.
//
// The stand-in of Dragonfly must not be kinder than dfdaemon and its scheduler. These are its rules, where they come
// from (dragonflyoss/dragonfly v2.3.4 unless another is named), and the test of each:
//
//	a part of 4 MiB is passed on when all of it is there, and the next one may take   client/daemon/peer/peertask_stream.go   TestParts
//	as long again: bytes come in bursts                                               internal/util/util.go
//	all nodes that read from a node share its uplink; a part is sent when there is    client/daemon/upload/upload_manager.go  TestUplink
//	room for all of it
//	a node has only what it asked for: others get it from a node that has it, and     scheduler/resource/standard/task.go     TestBackToSource
//	BackToSource nodes get it from the registry, although others are at it; a         scheduler/config/constants.go
//	scheduler that is not configured says 200
//	if a node dies, what others read from it comes from another one, or from the      scheduler/scheduling/scheduling.go      TestHandover
//	registry, from the begin of the part
//	a range of 4 MiB or less comes from the registry, for each who asks               client v1.5.1, task.rs                  TestDragonfly in convert/remote
//	what a node has is given to everybody, without credentials                        client v1.5.1, task.rs                  TestPeersGetNoPrivateModels there
//
// It is still kinder in two ways: the scheduler lets one node more than its limit go to the registry (CanBackToSource
// in task.go), and a node reads from the first node that has a part, which is alive, without finding that out by a
// timeout.
//
// https://github.com/dragonflyoss/dragonfly/tree/v2.3.4
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client/src/resource/task.rs
// https://github.com/spegel-org/spegel/blob/v0.7.4/pkg/registry/registry.go
package peerstest

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/contentrange"
)

// minPiece is the largest range, in bytes, that Dragonfly leaves to the registry.
const minPiece = 4 << 20

// part is what dfdaemon passes on at once, in bytes.
const part = 4 << 20

// A Cluster is a Dragonfly: its nodes, and who has which part of a blob.
type Cluster struct {
	Origin       string // URL of the only registry
	BackToSource int    // how many nodes may get the same part from the registry at a time; 0: 200, the default of a scheduler
	Uplink       int64  // bytes per second that a node sends to all others; 0 is no limit

	mu      sync.Mutex              // guards the following
	sizes   map[string]int64        // of blobs, by task
	sources map[string][]*Dragonfly // nodes that get a part from the registry, by task and offset
	parts   map[string]*held        // by task and offset
	changed chan struct{}           // closed when a node has another part, or dies
	passed  int64                   // bytes that the registry gave for ranges that are not shared
	shared  int64                   // bytes that the registry gave for parts
}

// held is a part that nodes have.
type held struct {
	bytes []byte
	by    []*Dragonfly // in the order in which they got it
}

// Passed returns the bytes that the registry gave for requests that are not shared.
func (c *Cluster) Passed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

// Shared returns the bytes that the registry gave for parts.
func (c *Cluster) Shared() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shared
}

// Dragonfly is the proxy of dfdaemon on a node.
type Dragonfly struct {
	*httptest.Server
	cluster *Cluster
	uplink  sync.Mutex // held while bytes are sent to another node
	dead    chan struct{}
	getting sync.Map // mutexes by task and offset: one request at a time gets a part

	mu     sync.Mutex // guards the following
	asked  []*http.Request
	faults Faults
}

// Faults are what a stand-in does wrong. The functions are called for each request, one at a time.
type Faults struct {
	Status  func() int     // its own error; 0: none
	Corrupt func(p []byte) // changes the bytes of an answer; those of Dragonfly are parts
}

// NewDragonfly starts a node, which the end of the test stops.
func (c *Cluster) NewDragonfly(t testing.TB) *Dragonfly {
	d := &Dragonfly{cluster: c, dead: make(chan struct{})}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// Kill ends the node, with the requests that it answers and what others read from it.
func (d *Dragonfly) Kill() {
	close(d.dead)
	d.cluster.mu.Lock()
	for _, p := range d.cluster.parts {
		p.by = slices.DeleteFunc(p.by, func(o *Dragonfly) bool { return o == d })
	}
	for key, l := range d.cluster.sources {
		d.cluster.sources[key] = slices.DeleteFunc(l, func(o *Dragonfly) bool { return o == d })
	}
	d.cluster.change()
	d.cluster.mu.Unlock()
	d.CloseClientConnections()
}

// isDead reports whether the node was killed.
func (d *Dragonfly) isDead() bool {
	select {
	case <-d.dead:
		return true
	default:
		return false
	}
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
	end := first + min(n, size-first)
	begun := false
	for at := first / part * part; at < end; at += part {
		p, ok := d.part(w, r, task+" "+r.Header.Get("X-Dragonfly-Piece-Length"), at, min(at+part, size), !begun)
		if !ok && !begun {
			return
		} else if !ok {
			panic(http.ErrAbortHandler)
		}
		p = p[max(0, first-at) : min(at+part, end)-at]
		if faults.Corrupt != nil {
			p = bytes.Clone(p)
			d.mu.Lock()
			faults.Corrupt(p)
			d.mu.Unlock()
		}
		if !begun {
			begun = true
			w.Header().Set("X-Dragonfly-Task-Download-Finished", "true")
			if ranged {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, end-1, size))
				w.WriteHeader(http.StatusPartialContent)
			}
		}
		if _, err := w.Write(p); err != nil {
			return
		}
		http.NewResponseController(w).Flush()
	}
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
		c.sizes = map[string]int64{}
	}
	c.sizes[task] = resp.ContentLength
	return resp.ContentLength, true
}

// part returns the bytes from at to end of a blob, when the node has all of them. It answers an error itself if the
// answer has not begun.
func (d *Dragonfly) part(w http.ResponseWriter, r *http.Request, task string, at, end int64, first bool) ([]byte, bool) {
	c, key := d.cluster, fmt.Sprint(task, at)
	one, _ := d.getting.LoadOrStore(key, &sync.Mutex{})
	one.(*sync.Mutex).Lock()
	defer one.(*sync.Mutex).Unlock()
	for r.Context().Err() == nil && !d.isDead() {
		p, from, source, changed := c.find(d, key)
		switch {
		case from == d:
			return p, true
		case from != nil:
			if !from.send(r, int64(len(p))) {
				continue // it died
			}
		case !source:
			select {
			case <-changed:
			case <-r.Context().Done():
			case <-d.dead:
			}
			continue
		default:
			var status int
			if p, status = c.get(d, r, key, at, end); p == nil {
				if first && status > 0 {
					fail(w, "backend", status, nil)
				} else if first {
					fail(w, "dfdaemon", http.StatusInternalServerError, nil)
				}
				return nil, false
			}
		}
		c.add(d, key, p)
		return p, true
	}
	panic(http.ErrAbortHandler)
}

// get reads a part from the registry for a node. Without the bytes, it returns the status of the answer, or 0.
func (c *Cluster) get(d *Dragonfly, r *http.Request, key string, at, end int64) ([]byte, int) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sources[key] = slices.DeleteFunc(c.sources[key], func(o *Dragonfly) bool { return o == d })
		c.change()
	}()
	resp, err := c.origin(r, http.MethodGet, fmt.Sprintf("bytes=%d-%d", at, end-1))
	if err != nil {
		return nil, 0
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	c.mu.Lock()
	c.shared += int64(len(p))
	c.mu.Unlock()
	cr, ok := contentrange.Parse(resp.Header.Get("Content-Range"))
	if err != nil || !ok || cr.First != at || int64(len(p)) != end-at {
		return nil, max(resp.StatusCode, http.StatusBadRequest)
	}
	return p, 0
}

// find returns a part, and a node that has it: d itself, or the first one that got it. If there is none, source says
// whether d may ask the registry; otherwise it waits for changed.
func (c *Cluster) find(d *Dragonfly, key string) (p []byte, from *Dragonfly, source bool, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed, c.parts, c.sources = make(chan struct{}), map[string]*held{}, map[string][]*Dragonfly{}
	}
	if h := c.parts[key]; h != nil && len(h.by) > 0 {
		if slices.Contains(h.by, d) {
			return h.bytes, d, false, nil
		}
		return h.bytes, h.by[0], false, nil
	}
	if len(c.sources[key]) < cmp.Or(c.BackToSource, 200) { // d is not one of them: it gets a part once at a time
		c.sources[key] = append(c.sources[key], d)
		return nil, nil, true, nil
	}
	return nil, nil, false, c.changed
}

// add records that a node has a part.
func (c *Cluster) add(d *Dragonfly, key string, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.isDead() {
		return
	}
	if c.parts[key] == nil {
		c.parts[key] = &held{bytes: p}
	}
	c.parts[key].by = append(c.parts[key].by, d)
	c.change()
}

// change wakes the nodes that wait. The caller holds mu.
func (c *Cluster) change() {
	if c.changed != nil {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// send takes the time that n bytes need on the uplink of d, beside those of others. It returns false if d dies.
func (d *Dragonfly) send(r *http.Request, n int64) bool {
	for rate := d.cluster.Uplink; rate > 0 && n > 0; n -= 256 << 10 {
		d.uplink.Lock()
		select {
		case <-time.After(time.Duration(min(n, 256<<10)) * time.Second / time.Duration(rate)):
		case <-d.dead:
		case <-r.Context().Done():
		}
		d.uplink.Unlock()
		if d.isDead() || r.Context().Err() != nil {
			return false
		}
	}
	return !d.isDead()
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
