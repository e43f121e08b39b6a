package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A swarm is dfdaemon on a node, as far as its traffic is concerned. It must not be kinder than the real one with its
// scheduler; the links are those of the node, which all that it sends shares. These are its rules, where they come from
// (dragonflyoss/dragonfly v2.3.4 unless another is named), and the test of each:
//
//	a range of 4 MiB or less comes from the registry, for each who asks                client v1.5.1, task.rs                      TestSwarmSmall
//	another range is a task, whose first BackToSource nodes get it from the registry   scheduler/resource/standard/task.go         TestSwarmStar
//	the first node that asked is the parent of all others, for all of the task         measured, with 8 nodes: all wait for one    TestSwarmStar
//	                                                                                   link
//	a part of 4 MiB is passed on, to nodes and clients, when all of it is there; the   client/daemon/peer/peertask_stream.go,      TestSwarmParts
//	answer begins with the first one                                                   internal/util/util.go
//	a task goes on when who asked for it has gone                                      client/daemon/peer/peertask_conductor.go    TestSwarmGoesOn
//	if a node dies, the next one that asked becomes the parent, and gets what it does  scheduler/scheduling/scheduling.go          TestSwarmHandover
//	not have from the registry, from the begin of a part
//
// It is kinder in one way: who reads from a node that has died knows that when the connection ends, without a timeout.
//
// https://github.com/dragonflyoss/dragonfly/tree/v2.3.4
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client/src/resource/task.rs
type swarm struct {
	registry, scheduler string                 // URLs
	own                 string                 // "address:port" for other nodes
	dir                 string                 // of the bytes of parts; nodes of one machine share it, which changes no traffic
	pass                *httputil.ReverseProxy // to the registry
	sent                atomic.Int64           // bytes of parts, to other nodes
	fault               atomic.Pointer[string] // swarmDead, swarmHung or swarmWrong; nil: none

	mu    sync.Mutex       // guards the following
	tasks map[string]*task // by blob and offset
}

// A task is a range that a node gets, or has.
type task struct {
	key, path   string // of the blob
	first, last int64

	mu      sync.Mutex // guards the following
	have    int        // parts, from the first one on
	err     error
	changed chan struct{} // closed when one of them changes
}

// What can be wrong with a dfdaemon.
const (
	swarmDead  = "dead"
	swarmHung  = "hung"
	swarmWrong = "wrong" // bytes, to clients and nodes
)

const (
	swarmPiece   = 16 << 20
	swarmPart    = 4 << 20
	registryOnly = 4 << 20
)

// serve serves the proxy, and other nodes.
func (s *swarm) serve(proxy, others net.Listener) error {
	origin, err := url.Parse(s.registry)
	if err != nil {
		return err
	}
	s.pass = httputil.NewSingleHostReverseProxy(origin)
	s.pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		w.Header().Set("X-Dragonfly-Error-Type", "dfdaemon")
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
	s.tasks = map[string]*task{}
	go http.Serve(proxy, s.suffering(s.proxy))
	go http.Serve(others, s.suffering(s.give))
	return nil
}

// suffering is a handler while nothing is wrong.
func (s *swarm) suffering(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.suffer(r.Context())
		next(w, r)
	}
}

// suffer does not return while a dfdaemon would not go on.
func (s *swarm) suffer(ctx context.Context) {
	f := s.fault.Load()
	if f != nil && *f == swarmHung {
		<-ctx.Done()
	}
	if f != nil && *f != swarmWrong {
		panic(http.ErrAbortHandler)
	}
}

// proxy answers a client.
func (s *swarm) proxy(w http.ResponseWriter, r *http.Request) {
	var first, last int64
	n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
	if n < 2 || r.Method != http.MethodGet || last-first < registryOnly || first%swarmPiece != 0 || last-first >= swarmPiece || r.Header.Get("X-Dragonfly-Use-P2P") != "true" {
		s.pass.ServeHTTP(w, r)
		return
	}
	t := s.task(r.URL.Path, first, last)
	for k := range t.parts() {
		if t.wait(r.Context(), k) != nil {
			panic(http.ErrAbortHandler)
		}
		if k == 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", first, last))
			w.Header().Set("Content-Length", fmt.Sprint(last-first+1))
			w.WriteHeader(http.StatusPartialContent)
		}
		s.write(r.Context(), w, t, k)
	}
}

// give answers another node, with a part.
func (s *swarm) give(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	t := s.tasks[strings.TrimPrefix(r.URL.Path, "/")]
	s.mu.Unlock()
	var k int
	if _, err := fmt.Sscan(r.URL.RawQuery, &k); err != nil || t == nil || k < 0 || k >= t.parts() || t.wait(r.Context(), k) != nil {
		panic(http.ErrAbortHandler)
	}
	s.sent.Add(s.write(r.Context(), w, t, k))
}

// write writes part k, which is there.
func (s *swarm) write(ctx context.Context, w http.ResponseWriter, t *task, k int) (n int64) {
	s.suffer(ctx)
	f, err := os.Open(s.file(t, k))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer f.Close()
	if fault := s.fault.Load(); fault != nil && *fault == swarmWrong {
		_, size := t.part(k)
		n, err = io.CopyN(w, rand.NewChaCha8([32]byte{}), size)
	} else {
		n, err = io.Copy(w, f)
	}
	if err == nil {
		err = http.NewResponseController(w).Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return n
}

func (s *swarm) file(t *task, k int) string {
	return filepath.Join(s.dir, fmt.Sprint(strings.ReplaceAll(t.key, ":", "-"), ".", k))
}

// task returns the task of a range, which it begins if the node does not have it.
func (s *swarm) task(blob string, first, last int64) *task {
	key := fmt.Sprintf("%s@%d", path.Base(blob), first)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[key]
	if t == nil {
		t = &task{key: key, path: blob, first: first, last: last, changed: make(chan struct{})}
		s.tasks[key] = t
		go s.run(t)
	}
	return t
}

func (t *task) parts() int { return int((t.last - t.first + swarmPart) / swarmPart) }

// part returns the range of part k in the blob.
func (t *task) part(k int) (off, size int64) {
	off = t.first + int64(k)*swarmPart
	return off, min(swarmPart, t.last+1-off)
}

// wait waits for part k.
func (t *task) wait(ctx context.Context, k int) error {
	for {
		t.mu.Lock()
		have, err, changed := t.have, t.err, t.changed
		t.mu.Unlock()
		if k < have || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change records that the task has n more parts, or has failed.
func (t *task) change(n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.have, t.err = t.have+n, err
	close(t.changed)
	t.changed = make(chan struct{})
}

// run gets all parts of a task.
func (s *swarm) run(t *task) {
	for k := 0; k < t.parts(); {
		parent, err := s.ask("parent", t.key, s.own)
		switch {
		case err != nil:
		case parent == "":
			var body io.ReadCloser
			off, _ := t.part(k)
			if body, err = get(s.registry+t.path, off, t.last); err != nil {
				break
			}
			for ; k < t.parts() && err == nil; k++ {
				err = s.receive(t, k, body)
			}
			body.Close()
		default:
			var body io.ReadCloser
			if body, err = get(fmt.Sprintf("http://%s/%s?%d", parent, t.key, k), 0, -1); err == nil {
				err = s.receive(t, k, body)
				body.Close()
			}
			if err == nil {
				k++
			} else {
				_, err = s.ask("dead", t.key, parent)
			}
		}
		if err != nil {
			s.mu.Lock()
			delete(s.tasks, t.key)
			s.mu.Unlock()
			t.change(0, err)
			return
		}
	}
}

// receive reads part k.
func (s *swarm) receive(t *task, k int, body io.Reader) error {
	_, size := t.part(k)
	name := s.file(t, k)
	if _, err := os.Stat(name); err == nil { // by another node of the machine
		if _, err := io.CopyN(io.Discard, body, size); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	} else {
		f, err := os.CreateTemp(s.dir, "part")
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, body, size)
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(f.Name(), name)
		}
		if err != nil {
			return errors.Join(err, os.Remove(f.Name()))
		}
	}
	t.change(1, nil)
	return nil
}

// get requests a URL, from offset first to last unless that is negative.
func get(url string, first, last int64) (io.ReadCloser, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if last >= 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, last))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return resp.Body, nil
}

// ask returns what the scheduler answers.
func (s *swarm) ask(what, key, node string) (string, error) {
	body, err := get(s.scheduler+"/"+what+"?"+key+","+node, 0, -1)
	if err != nil {
		return "", err
	}
	defer body.Close()
	p, err := io.ReadAll(body)
	return string(p), err
}

// A scheduler knows which nodes have asked for a task, and which of them is the parent of the others.
type scheduler struct {
	backToSource int         // how many nodes may get a task from the registry
	gone         atomic.Bool // it does not answer

	mu    sync.Mutex
	nodes map[string][]string // that live, by task, in the order in which they asked; guarded by mu
}

// ServeHTTP implements http.Handler. To a node that asks for its parent it answers nothing if that is the registry.
func (c *scheduler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.gone.Load() {
		panic(http.ErrAbortHandler)
	}
	key, node, _ := strings.Cut(r.URL.RawQuery, ",")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes == nil {
		c.nodes = map[string][]string{}
	}
	if r.URL.Path == "/dead" {
		c.nodes[key] = slices.DeleteFunc(c.nodes[key], func(n string) bool { return n == node })
		return
	}
	at := slices.Index(c.nodes[key], node)
	if at < 0 {
		at = len(c.nodes[key])
		c.nodes[key] = append(c.nodes[key], node)
	}
	if at >= c.backToSource {
		_, _ = io.WriteString(w, c.nodes[key][0])
	}
}
