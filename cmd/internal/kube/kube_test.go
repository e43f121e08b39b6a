package kube

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const (
	label = "ballast.dev/node"
	taint = "ballast.dev/not-ready"
)

// A server is an API server for one node. Patches are applied as in RFC 6902, all or nothing.
type server struct {
	t *testing.T

	mu      sync.Mutex // guards the fields below
	labels  map[string]string
	taints  []Taint
	patches int
	before  func() // called before a patch is applied, for a concurrent change
	status  int    // of responses instead
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(code int, v any) {
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			s.t.Error(err)
		}
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		answer(http.StatusUnauthorized, map[string]string{"message": "who are you"})
	case s.status != 0:
		answer(s.status, map[string]string{"message": "as it was told"})
	case r.URL.Path == "/apis/apps/v1/namespaces/ns/daemonsets/set":
		answer(http.StatusOK, json.RawMessage(`{"metadata":{"generation":2},"status":{"observedGeneration":2,"desiredNumberScheduled":3,"updatedNumberScheduled":2,"numberReady":3}}`))
	case r.URL.Path != "/api/v1/nodes/n1":
		answer(http.StatusNotFound, map[string]string{"message": `nodes "x" not found`})
	case r.Method == http.MethodPatch:
		s.patches++
		if s.before != nil {
			s.before()
		}
		var ops []operation
		if err := json.NewDecoder(r.Body).Decode(&ops); err != nil || r.Header.Get("Content-Type") != "application/json-patch+json" {
			s.t.Errorf("patch: %v", err)
		}
		if !s.apply(ops) {
			answer(http.StatusUnprocessableEntity, map[string]string{"message": "the server rejected our request due to an error in our request"})
			return
		}
		fallthrough
	default:
		answer(http.StatusOK, map[string]any{"metadata": map[string]any{"labels": s.labels}, "spec": map[string]any{"taints": s.taints}})
	}
}

func (s *server) apply(ops []operation) bool {
	labels, taints := map[string]string{}, append([]Taint(nil), s.taints...)
	for k, v := range s.labels {
		labels[k] = v
	}
	for _, op := range ops {
		if key, ok := strings.CutPrefix(op.Path, "/metadata/labels/"); ok {
			key = strings.NewReplacer("~1", "/", "~0", "~").Replace(key)
			if _, there := labels[key]; op.Op == "remove" && !there {
				return false
			}
			if op.Op == "add" {
				labels[key] = op.Value
			} else {
				delete(labels, key)
			}
			continue
		}
		number, field, _ := strings.Cut(strings.TrimPrefix(op.Path, "/spec/taints/"), "/")
		i, err := strconv.Atoi(number)
		switch {
		case err != nil || i >= len(taints):
			return false
		case op.Op == "test" && field == "key" && taints[i].Key == op.Value:
		case op.Op == "remove" && field == "":
			taints = append(taints[:i], taints[i+1:]...)
		default:
			return false
		}
	}
	s.labels, s.taints = labels, taints
	return true
}

// start starts an API server and returns a client of it.
func start(t *testing.T, s *server) *Client {
	t.Helper()
	s.t = t
	srv := httptest.NewTLSServer(s)
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for name, p := range map[string][]byte{caFile: ca, tokenFile: []byte("secret\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := NewClient(srv.Listener.Addr().String(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestJoin marks nodes and removes the mark; nodes that need no change are not patched.
func TestJoin(t *testing.T) {
	for name, tt := range map[string]struct {
		taints, want []Taint
	}{
		"no taint":  {nil, nil},
		"the taint": {[]Taint{{taint}}, nil},
		"among others": {
			[]Taint{{taint}, {"a"}, {taint}, {"b"}, {taint}},
			[]Taint{{"a"}, {"b"}},
		},
	} {
		s := &server{labels: map[string]string{"a": "b"}, taints: tt.taints}
		c, m := start(t, s), Marks{label, taint}
		changed, err := c.Join(t.Context(), "n1", m)
		if err != nil || !changed || s.labels[label] != "true" || s.labels["a"] != "b" {
			t.Errorf("%s: %t, %v, %v", name, changed, err, s.labels)
		}
		if d := cmp.Diff(len(tt.want), len(s.taints)); d != "" || len(tt.want) > 0 && cmp.Diff(tt.want, s.taints) != "" {
			t.Errorf("%s: taints %v, want %v", name, s.taints, tt.want)
		}
		if changed, err := c.Join(t.Context(), "n1", m); changed || err != nil || s.patches != 1 {
			t.Errorf("%s, again: %t, %v, %d patches", name, changed, err, s.patches)
		}
		if changed, err := c.Leave(t.Context(), "n1", m); !changed || err != nil || len(s.labels) != 1 {
			t.Errorf("%s, leave: %t, %v, %v", name, changed, err, s.labels)
		}
		if changed, err := c.Leave(t.Context(), "n1", m); changed || err != nil {
			t.Errorf("%s, leave again: %t, %v", name, changed, err)
		}
	}
}

// TestJoinKeepsConcurrentTaints changes the taints between the read and the patch: those of others stay.
func TestJoinKeepsConcurrentTaints(t *testing.T) {
	s := &server{taints: []Taint{{"a"}, {taint}}}
	s.before = func() {
		if s.patches == 1 {
			s.taints = []Taint{{taint}, {"b"}}
		}
	}
	c := start(t, s)
	if changed, err := c.Join(t.Context(), "n1", Marks{label, taint}); !changed || err != nil || s.patches != 2 {
		t.Errorf("%t, %v, %d patches", changed, err, s.patches)
	}
	if d := cmp.Diff([]Taint{{"b"}}, s.taints); d != "" {
		t.Errorf("taints (-want +got):\n%s", d)
	}
	s.before = func() { s.taints = append([]Taint{{"c"}}, s.taints...) }
	s.taints = []Taint{{taint}}
	if _, err := c.Join(t.Context(), "n1", Marks{label, taint}); !errdefs.IsConflict(err) || s.patches != 2+tries {
		t.Errorf("always changed: %v, %d patches", err, s.patches)
	}
}

func TestErrors(t *testing.T) {
	s := &server{}
	c := start(t, s)
	for status, is := range map[int]func(error) bool{
		http.StatusForbidden: errdefs.IsPermissionDenied, http.StatusNotFound: errdefs.IsNotFound,
		http.StatusTooManyRequests: errdefs.IsUnavailable, http.StatusServiceUnavailable: errdefs.IsUnavailable,
		http.StatusConflict: errdefs.IsConflict, http.StatusFound: func(err error) bool { return err != nil && !errdefs.IsUnavailable(err) },
	} {
		s.status = status
		if _, err := c.Node(t.Context(), "n1"); !is(err) || !strings.Contains(err.Error(), "as it was told") {
			t.Errorf("%d: %v", status, err)
		}
	}
	s.status = 0
	if err := os.WriteFile(filepath.Join(c.account, tokenFile), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Node(t.Context(), "n1"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another token: %v", err)
	}
	if err := os.WriteFile(filepath.Join(c.account, tokenFile), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Node(t.Context(), "n1"); err != nil {
		t.Errorf("a renewed token: %v", err)
	}
	if _, err := c.Node(t.Context(), "../n2"); !errdefs.IsNotFound(err) {
		t.Errorf("another path: %v", err)
	}
	if _, err := NewClient("127.0.0.1:1", t.TempDir()); err == nil {
		t.Error("no certificates: no error")
	}
}

func TestDaemonSet(t *testing.T) {
	c := start(t, &server{})
	got, err := c.DaemonSet(t.Context(), "ns", "set")
	if d := cmp.Diff(DaemonSet{Desired: 3, Ready: 2, Known: true}, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}
