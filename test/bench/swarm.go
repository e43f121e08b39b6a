package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// A swarm is the proxy of dfdaemon on a node, as far as its traffic is concerned: ranges of at most 4 MiB go to the
// registry, others are whole pieces of 16 MiB, which one node gets from the registry and the others from nodes that
// have it.
//
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client/src/resource/task.rs
type swarm struct {
	registry, tracker string                 // URLs
	own               string                 // "address:port" for other nodes
	pass              *httputil.ReverseProxy // to the registry

	mu     sync.Mutex               // guards pieces
	pieces map[string]*swarmedPiece // by path and offset
}

// A swarmedPiece is a piece that a node has, or gets: it goes on when who asked for it has gone.
type swarmedPiece struct {
	done  chan struct{} // closed when the following is set
	bytes []byte
	err   error
}

const (
	swarmPiece   = 16 << 20
	registryOnly = 4 << 20
)

// serve serves the proxy at an address of this node, and pieces at another one.
func (s *swarm) serve(proxy string) error {
	origin, err := url.Parse(s.registry)
	if err != nil {
		return err
	}
	s.pass = httputil.NewSingleHostReverseProxy(origin)
	s.pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		w.Header().Set("X-Dragonfly-Error-Type", "dfdaemon")
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
	s.pieces = map[string]*swarmedPiece{}
	p, err := net.Listen("tcp", proxy)
	if err != nil {
		return err
	}
	o, err := net.Listen("tcp", s.own)
	if err != nil {
		return err
	}
	go http.Serve(p, http.HandlerFunc(s.proxy))
	go http.Serve(o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		p := s.pieces[r.URL.RawQuery]
		s.mu.Unlock()
		if p == nil {
			http.NotFound(w, r)
			return
		}
		<-p.done
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.bytes))
	}))
	return nil
}

// proxy answers a node's request.
func (s *swarm) proxy(w http.ResponseWriter, r *http.Request) {
	var first, last int64
	n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
	if n < 2 || r.Method != http.MethodGet || last-first < registryOnly || first%swarmPiece != 0 || last-first >= swarmPiece || r.Header.Get("X-Dragonfly-Use-P2P") != "true" {
		s.pass.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", first, last))
	w.Header().Set("Content-Length", fmt.Sprint(last-first+1))
	w.WriteHeader(http.StatusPartialContent) // when the task has begun, which is before it has the piece
	_ = http.NewResponseController(w).Flush()
	p, err := s.piece(r.Context(), r.URL.Path, first, last)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(p)
}

// piece returns a piece, from here, from another node, or from the registry.
func (s *swarm) piece(ctx context.Context, blob string, first, last int64) ([]byte, error) {
	key := fmt.Sprintf("%s@%d", path.Base(blob), first)
	s.mu.Lock()
	p := s.pieces[key]
	if p == nil {
		p = &swarmedPiece{done: make(chan struct{})}
		s.pieces[key] = p
		go func() {
			defer close(p.done)
			if p.bytes, p.err = s.fetch(key, blob, first, last); p.err != nil {
				s.mu.Lock()
				delete(s.pieces, key)
				s.mu.Unlock()
			}
		}()
	}
	s.mu.Unlock()
	select {
	case <-p.done:
		return p.bytes, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fetch gets a piece from where the tracker says.
func (s *swarm) fetch(key, blob string, first, last int64) ([]byte, error) {
	from, err := s.ask("where?" + key)
	if err != nil {
		return nil, err
	}
	p := make([]byte, last-first+1)
	if from == "" {
		err = getRange(http.DefaultClient, s.registry+blob, p, first)
	} else {
		err = getRange(http.DefaultClient, "http://"+from+"/?"+key, p, 0)
	}
	has := s.own
	if err != nil {
		has = ""
	}
	_, terr := s.ask("had?" + strings.Join([]string{key, from, has}, ","))
	return p, errors.Join(err, terr)
}

// ask returns what the tracker answers.
func (s *swarm) ask(what string) (string, error) {
	resp, err := http.Get(s.tracker + "/" + what)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	return string(p), err
}

// A tracker knows which node has which piece, and has one node get it from the registry.
type tracker struct {
	mu      sync.Mutex // guards the following
	changed *sync.Cond
	pieces  map[string]*place
	sends   map[string]int // transfers that run, by node
}

// A place is where a piece is.
type place struct {
	fetching bool     // from the registry
	nodes    []string // that have it
}

func newTracker() *tracker {
	t := &tracker{pieces: map[string]*place{}, sends: map[string]int{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// maxSends is how many pieces a node sends at the same time.
const maxSends = 4

// ServeHTTP implements http.Handler.
func (t *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.URL.Path == "/where" {
		defer context.AfterFunc(r.Context(), t.changed.Broadcast)()
		key := r.URL.RawQuery
		for r.Context().Err() == nil {
			p := t.pieces[key]
			if p == nil {
				p = &place{}
				t.pieces[key] = p
			}
			if len(p.nodes) == 0 && !p.fetching {
				p.fetching = true
				return
			}
			if len(p.nodes) > 0 {
				from := slices.MinFunc(p.nodes, func(a, b string) int { return t.sends[a] - t.sends[b] })
				if t.sends[from] < maxSends {
					t.sends[from]++
					_, _ = io.WriteString(w, from)
					return
				}
			}
			t.changed.Wait()
		}
		return
	}
	key, rest, _ := strings.Cut(r.URL.RawQuery, ",")
	from, has, _ := strings.Cut(rest, ",")
	if p := t.pieces[key]; p != nil {
		if from == "" {
			p.fetching = false
		} else {
			t.sends[from]--
		}
		if has != "" {
			p.nodes = append(p.nodes, has)
		}
		t.changed.Broadcast()
	}
}
