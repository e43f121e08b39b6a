package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/storetest"
)

// What dfdaemon passes on at once, and what ballast asks it for, in bytes; and the path of the blob of swarms.
const (
	enginePart  = 4 << 20
	enginePiece = 16 << 20
	swarmBlob   = "/v2/m/blobs/sha256:0"
)

// A swarms is a registry of one blob of two pieces, and a scheduler.
type swarms struct {
	t                   *testing.T
	blob                []byte
	registry, scheduler string
	tracker             *scheduler
	sent                atomic.Int64                  // bytes of the registry
	hold                atomic.Pointer[chan struct{}] // what comes after the first holdAt bytes of an answer waits for it
	holdAt              int
}

func newSwarms(t *testing.T, backToSource int) *swarms {
	s := &swarms{t: t, blob: storetest.Random(1, 2*enginePiece)}
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var first, last int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
		w.WriteHeader(http.StatusPartialContent)
		p := s.blob[first : last+1]
		if wait := s.hold.Load(); wait != nil {
			n, _ := w.Write(p[:s.holdAt])
			_ = http.NewResponseController(w).Flush()
			s.sent.Add(int64(n))
			p = p[s.holdAt:]
			select {
			case <-*wait:
			case <-r.Context().Done():
				return
			}
		}
		n, _ := w.Write(p)
		s.sent.Add(int64(n))
	}))
	t.Cleanup(registry.Close)
	s.tracker = &scheduler{backToSource: backToSource}
	tracker := httptest.NewServer(s.tracker)
	t.Cleanup(tracker.Close)
	s.registry, s.scheduler = registry.URL, tracker.URL
	return s
}

// holds makes the registry stop after n bytes of each answer, until release is called.
func (s *swarms) holds(n int) (release func()) {
	wait := make(chan struct{})
	s.holdAt = n
	s.hold.Store(&wait)
	release = sync.OnceFunc(func() {
		s.hold.Store(nil)
		close(wait)
	})
	s.t.Cleanup(release)
	return release
}

// A swarmNode is a node with its proxy.
type swarmNode struct {
	*swarm
	url  string
	kill func()
}

// A listener can end its connections.
type listener struct {
	net.Listener
	mu  sync.Mutex
	all []net.Conn
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.all = append(l.all, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *listener) kill() {
	l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		c.Close()
	}
}

func (s *swarms) node() *swarmNode {
	s.t.Helper()
	var both [2]*listener
	for i := range both {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.t.Fatal(err)
		}
		both[i] = &listener{Listener: l}
		s.t.Cleanup(both[i].kill)
	}
	n := &swarm{registry: s.registry, scheduler: s.scheduler, own: both[1].Addr().String(), dir: s.t.TempDir()}
	if err := n.serve(both[0], both[1]); err != nil {
		s.t.Fatal(err)
	}
	return &swarmNode{n, "http://" + both[0].Addr().String(), both[1].kill}
}

// get requests bytes from a node.
func (s *swarms) get(ctx context.Context, n *swarmNode, off, size int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+swarmBlob, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+size-1))
	req.Header.Set("X-Dragonfly-Use-P2P", "true")
	return http.DefaultClient.Do(req)
}

// An arrival counts what arrives of a range.
type arrival struct {
	n    atomic.Int64
	done chan struct{}
}

// download requests bytes from a node, and verifies them.
func (s *swarms) download(n *swarmNode, off, size int) *arrival {
	d := &arrival{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		resp, err := s.get(s.t.Context(), n, off, size)
		if err != nil {
			s.t.Error(err)
			return
		}
		defer resp.Body.Close()
		var got bytes.Buffer
		for buf := make([]byte, 64<<10); ; {
			m, err := resp.Body.Read(buf)
			got.Write(buf[:m])
			d.n.Add(int64(m))
			if err == io.EOF {
				break
			}
			if err != nil {
				s.t.Errorf("after %d bytes: %v", got.Len(), err)
				return
			}
		}
		if !bytes.Equal(got.Bytes(), s.blob[off:off+size]) {
			s.t.Errorf("other bytes: %d of %d", got.Len(), size)
		}
	}()
	return d
}

// reaches waits until a number is reached.
func reaches(t *testing.T, what string, n func() int64, want int64) {
	t.Helper()
	for begin := time.Now(); n() < want; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: %d, want %d", what, n(), want)
		}
	}
}

// sends checks that a server sends so many bytes in total. It counts them after its client has them.
func sends(t *testing.T, who string, n *atomic.Int64, want int64) {
	t.Helper()
	reaches(t, who, n.Load, want)
	if got := n.Load(); got != want {
		t.Errorf("%s sent %d bytes, want %d", who, got, want)
	}
}

// registered waits until the scheduler knows n nodes of the only task.
func (s *swarms) registered(n int) {
	s.t.Helper()
	reaches(s.t, "nodes", func() (all int64) {
		s.tracker.mu.Lock()
		defer s.tracker.mu.Unlock()
		for _, nodes := range s.tracker.nodes {
			all += int64(len(nodes))
		}
		return all
	}, int64(n))
}

// TestSwarmSmall checks that small ranges come from the registry, for each who asks.
func TestSwarmSmall(t *testing.T) {
	s := newSwarms(t, 1)
	for range 3 {
		<-s.download(s.node(), 0, 4<<20).done
	}
	sends(t, "the registry", &s.sent, 3*4<<20)
}

// TestSwarmStar checks who goes to the registry, and that the first one sends everything to all others, at the same time.
func TestSwarmStar(t *testing.T) {
	for sources := 1; sources <= 2; sources++ {
		s := newSwarms(t, sources)
		release := s.holds(0)
		var nodes []*swarmNode
		var all []*arrival
		for i := range 5 {
			nodes = append(nodes, s.node())
			all = append(all, s.download(nodes[i], enginePiece, enginePiece))
			s.registered(i + 1)
		}
		release()
		for _, d := range all {
			<-d.done
		}
		may := fmt.Sprintf("%d may go to the registry: ", sources)
		sends(t, may+"it", &s.sent, int64(sources)*enginePiece)
		for i, n := range nodes {
			want := int64(0)
			if i == 0 {
				want = int64(len(nodes)-sources) * enginePiece
			}
			sends(t, fmt.Sprint(may, "node ", i), &n.sent, want)
		}
	}
}

// TestSwarmParts checks that nothing of a part is passed on before all of it is there: to the client of the node that
// gets it from the registry, to another node, and to the client of that one.
func TestSwarmParts(t *testing.T) {
	s := newSwarms(t, 1)
	release := s.holds(enginePart - 1)
	first, second := s.node(), s.node()
	one := s.download(first, 0, enginePiece)
	s.registered(1)
	two := s.download(second, 0, enginePiece)
	time.Sleep(300 * time.Millisecond) // a kinder one passes something on meanwhile
	if n, m, sent := one.n.Load(), two.n.Load(), first.sent.Load(); n != 0 || m != 0 || sent != 0 {
		t.Errorf("of a part that is not there %d and %d bytes are passed on, and %d to the other node", n, m, sent)
	}
	release()
	<-one.done
	<-two.done

	// Between the nodes: the parent is a server that stops within the second part.
	s = newSwarms(t, 0) // nobody goes to the registry
	wait := make(chan struct{})
	parent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var k int
		_, _ = fmt.Sscan(r.URL.RawQuery, &k)
		p := s.blob[k*enginePart:][:enginePart]
		if k > 0 {
			_, _ = w.Write(p[:enginePart/2])
			_ = http.NewResponseController(w).Flush()
			<-wait
			p = p[enginePart/2:]
		}
		_, _ = w.Write(p)
	}))
	defer parent.Close()
	node := s.node()
	if _, err := node.ask("parent", "sha256:0@0", parent.Listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	d := s.download(node, 0, enginePiece)
	reaches(t, "the first part", d.n.Load, enginePart)
	time.Sleep(300 * time.Millisecond)
	if n := d.n.Load(); n != enginePart {
		t.Errorf("the client has %d bytes, want %d", n, enginePart)
	}
	close(wait)
	<-d.done
}

// TestSwarmGoesOn checks that a task goes on without its client.
func TestSwarmGoesOn(t *testing.T) {
	s := newSwarms(t, 1)
	release := s.holds(enginePart)
	n := s.node()
	ctx, leave := context.WithCancel(t.Context())
	resp, err := s.get(ctx, n, 0, enginePiece)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	release()
	reaches(t, "the registry", s.sent.Load, enginePiece)
	<-s.download(n, 0, enginePiece).done
	sends(t, "the registry", &s.sent, enginePiece)
}

// TestSwarmHandover checks that the second node becomes the parent when the first one dies, and gets what it lacks.
func TestSwarmHandover(t *testing.T) {
	s := newSwarms(t, 1)
	release := s.holds(enginePart) // of each answer
	nodes := []*swarmNode{s.node(), s.node(), s.node()}
	var all []*arrival
	for _, n := range nodes {
		d := s.download(n, 0, enginePiece)
		reaches(t, "the first part", d.n.Load, enginePart)
		all = append(all, d)
	}
	nodes[0].kill()
	for i, d := range all[1:] { // the second one begins again where it is, and stops after a part
		reaches(t, fmt.Sprintf("the second part of node %d", i+1), d.n.Load, 2*enginePart)
	}
	sends(t, "the registry", &s.sent, 2*enginePart)
	sends(t, "the second node", &nodes[1].sent, enginePart)
	release()
	for _, d := range all { // clients of the first one still read what it gets
		<-d.done
	}
}
