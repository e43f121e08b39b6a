package differ

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/services/content/contentserver"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
)

func TestContentFetcher(t *testing.T) {
	n := newNode(t)
	p := random(1, 3<<20+5)
	desc := n.put(t, "application/octet-stream", p, nil)
	// The namespace is the fetcher's, whatever the context says.
	f := ContentFetcher{Provider: n.differ.o.Content, Namespace: namespace}
	size := int64(len(p))
	for _, r := range [][2]int64{{0, size}, {0, 0}, {size, 0}, {size - 1, 1}, {1 << 20, 2<<20 - 3}, {5, 1}} {
		body, start, err := f.Fetch(t.Context(), desc.Digest, size, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if err != nil || start != r[0] || !bytes.Equal(got, p[r[0]:r[0]+r[1]]) {
			t.Errorf("%d+%d: got %d bytes from %d, %v", r[0], r[1], len(got), start, err)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range [][2]int64{{-1, 1}, {0, -1}, {0, size + 1}, {size, 1}, {1 << 62, 1 << 62}} {
		if _, _, err := f.Fetch(t.Context(), desc.Digest, size, r[0], r[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d+%d: got %v, want invalid argument", r[0], r[1], err)
		}
	}
	if _, _, err := f.Fetch(t.Context(), digest.FromString("x"), 1, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("unknown blob: got %v, want not found", err)
	}
	if _, _, err := f.Fetch(t.Context(), desc.Digest, size+1, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("another size: got %v, want not found", err)
	}
	f.Namespace = "other"
	if _, _, err := f.Fetch(n.ctx, desc.Digest, size, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("another namespace: got %v, want not found", err)
	}
}

// The daemon can start before containerd, and outlive it.
func TestDialLazy(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	socket := filepath.Join(t.TempDir(), "s.sock")
	c, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, c)
	d := digest.FromString("x")
	if _, err = c.Info(ctx, d); !errdefs.IsUnavailable(err) {
		t.Errorf("before containerd: got %v, want unavailable", err)
	}
	cs, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	serve(t, socket, func(s *grpc.Server) { contentapi.RegisterContentServer(s, contentserver.New(cs)) })
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, err = c.Info(ctx, d); !errdefs.IsUnavailable(err) || time.Since(start) > 4*maxRedial {
			break
		}
	}
	if !errdefs.IsNotFound(err) {
		t.Errorf("after: got %v, want not found", err)
	}
}

func TestParseSources(t *testing.T) {
	const key = "containerd.io/distribution.source."
	var many []string
	for i := range 3 * maxSources {
		many = append(many, fmt.Sprint("r", i))
	}
	tests := []struct {
		name   string
		labels map[string]string
		want   []Repository
	}{
		{"none", nil, nil},
		{"others", map[string]string{"containerd.io/gc.root": "x", "containerd.io/distribution.source": "y", key: "z"}, nil},
		{"several", map[string]string{key + "b.example": "z,y", key + "a.example:5000": "x"}, []Repository{{"a.example:5000", "x"}, {"b.example", "y"}, {"b.example", "z"}}},
		{"empty and twice", map[string]string{key + "a": ",x,,x,"}, []Repository{{"a", "x"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(parseSources(test.labels), test.want, cmp.Transformer("len", func(s []Repository) string { return fmt.Sprint(s) })); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
	if got := len(parseSources(map[string]string{key + "a": strings.Join(many, ",")})); got != maxSources {
		t.Errorf("got %d sources, want %d at most", got, maxSources)
	}
}

func FuzzParseSources(f *testing.F) {
	f.Add("containerd.io/distribution.source.a", "x,y", "containerd.io/distribution.source.b", "")
	f.Add("", ",", "containerd.io/distribution.source.", "x")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		seen := map[Repository]bool{}
		for _, s := range parseSources(map[string]string{k1: v1, k2: v2}) {
			if s.Host == "" || s.Name == "" || strings.Contains(s.Name, ",") || seen[s] {
				t.Errorf("bad source %q", s)
			}
			seen[s] = true
		}
	})
}
