package differ

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func TestContentFetcher(t *testing.T) {
	n := newNode(t)
	p := storetest.Random(1, 3<<20+5)
	desc := n.put(t, "application/octet-stream", p, from("registry.example", "team/b"))
	// The namespace of the fetcher counts, not that of the context.
	f := ContentFetcher{Content: n.differ.o.Content, Namespace: namespace, Repository: Repository{"registry.example:5000", "team/b"}}
	size := int64(len(p))
	for _, r := range [][2]int64{{0, size}, {0, 0}, {size, 0}, {size - 1, 1}, {1 << 20, 2<<20 - 3}, {5, 1}} {
		body, start, err := f.Fetch(t.Context(), desc.Digest, size, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		if !transfer.IsPrivate(body) {
			t.Error("the body is not private")
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
	ours := f.Repository
	for _, r := range []Repository{{}, {"registry.example", "team"}, {"registry.example", "team/a,team/b"}, {"other.example", "team/b"}} {
		f.Repository = r
		if _, _, err := f.Fetch(t.Context(), desc.Digest, size, 0, 1); !errdefs.IsNotFound(err) {
			t.Errorf("for who pulls from %q: got %v, want not found", r, err)
		}
	}
	f.Repository = ours
	for _, several := range []bool{true, false} { // labels have no ports
		f.Ports = func(context.Context) bool { return several }
		body, _, err := f.Fetch(t.Context(), desc.Digest, size, 0, 1)
		if several != errdefs.IsNotFound(err) {
			t.Errorf("other ports known %t: %v", several, err)
		}
		if err == nil {
			body.Close()
		}
	}
	f.Ports = nil
	two := from("registry.example", "team/b")
	maps.Copy(two, from("evil.example", "x"))
	for i, ls := range []map[string]string{two, from("registry.example", "team/a,team/b")} {
		others := n.put(t, "application/octet-stream", storetest.Random(uint64(i+50), 1000), ls)
		if _, _, err := f.Fetch(t.Context(), others.Digest, others.Size, 0, 1); !errdefs.IsNotFound(err) {
			t.Errorf("what other repositories have named too, %v: %v", ls, err)
		}
	}
	imported := n.put(t, "application/octet-stream", []byte("imported"), nil)
	for r, there := range map[Repository]bool{{}: true, ours: false} {
		f.Repository = r
		body, _, err := f.Fetch(t.Context(), imported.Digest, imported.Size, 0, 1)
		if there != (err == nil) || !there && !errdefs.IsNotFound(err) {
			t.Errorf("what came from nowhere, for who pulls from %q: %v", r, err)
		}
		if err == nil {
			body.Close()
		}
	}
	f.Namespace, f.Repository = "other", ours
	if _, _, err := f.Fetch(n.ctx, desc.Digest, size, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("another namespace: got %v, want not found", err)
	}
}

// asked counts the requests to a content store.
type asked struct {
	Content
	infos, walks int
}

func (a *asked) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	a.infos++
	return a.Content.Info(ctx, d)
}

func (a *asked) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	a.walks++
	return a.Content.Walk(ctx, fn, filters...)
}

// A model whose layers are not in the content store takes one request for all of them, and what is there is still
// found.
func TestContentFetcherManyMissing(t *testing.T) {
	n := newNode(t)
	for i := range 3 { // of other repositories
		n.put(t, "application/octet-stream", storetest.Random(uint64(100+i), 10), from("other.example", "team/b"))
	}
	here := n.put(t, "application/octet-stream", []byte("here"), from("registry.example", "team/b"))
	a := &asked{Content: n.differ.o.Content}
	f := &ContentFetcher{Content: a, Namespace: namespace, Repository: Repository{"registry.example:5000", "team/b"}}
	for i := range 1000 {
		if _, _, err := f.Fetch(t.Context(), digest.FromString(fmt.Sprint(i)), 1, 0, 1); !errdefs.IsNotFound(err) {
			t.Fatalf("got %v, want not found", err)
		}
	}
	if a.infos != manyMisses || a.walks != 1 || len(f.listing) != 1 {
		t.Errorf("%d requests for a blob and %d for all, which gave %d, want %d, 1 and 1", a.infos, a.walks, len(f.listing), manyMisses)
	}
	body, _, err := f.Fetch(t.Context(), here.Digest, here.Size, 0, here.Size)
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	late := n.put(t, "application/octet-stream", []byte("late"), from("registry.example", "team/b"))
	f.listed = f.listed.Add(-listingTTL - time.Second)
	if body, _, err = f.Fetch(t.Context(), late.Digest, late.Size, 0, late.Size); err != nil {
		t.Fatalf("a blob that came later: %v", err)
	}
	body.Close()
}

// A blob that exists only for other namespaces is reported like a missing one.
func TestContentFetcherRevealsNothing(t *testing.T) {
	n := newNode(t)
	desc := n.put(t, "application/octet-stream", storetest.Random(1, 12345), from("private.example", "team/a"))
	here := &ContentFetcher{Content: n.differ.o.Content, Namespace: namespace, Repository: Repository{"private.example", "team/a"}}
	elsewhere := &ContentFetcher{Content: n.differ.o.Content, Namespace: namespace, Repository: Repository{"evil.example", "x"}}
	var texts []string
	for _, f := range []*ContentFetcher{here, elsewhere} {
		for _, size := range []int64{7, 12345} {
			if f == here && size == 12345 {
				continue
			}
			_, _, err := f.Fetch(t.Context(), desc.Digest, size, 0, 1)
			if !errdefs.IsNotFound(err) {
				t.Fatalf("got %v, want not found", err)
			}
			texts = append(texts, err.Error())
		}
	}
	_, _, err := elsewhere.Fetch(t.Context(), digest.FromString("x"), 7, 0, 1)
	texts = append(texts, strings.ReplaceAll(err.Error(), digest.FromString("x").String(), desc.Digest.String()))
	for _, s := range texts {
		if s != texts[0] || strings.Contains(s, "12345") {
			t.Errorf("%q differs from %q, or has the size", s, texts[0])
		}
	}
}

// Closing a connection to containerd does not end a pull that reads from it.
func TestContentFetcherClosed(t *testing.T) {
	n := newNode(t)
	p := storetest.Random(1, 3<<20)
	desc := n.put(t, "application/octet-stream", p, nil)
	conn := connect(t, n.socket)
	f := &ContentFetcher{Content: proxy.NewContentStore(conn), Namespace: namespace}
	body, _, err := f.Fetch(t.Context(), desc.Digest, desc.Size, 0, desc.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	_, readErr := io.ReadAll(body)
	_, _, fetchErr := f.Fetch(t.Context(), desc.Digest, desc.Size, 0, 1)
	for what, err := range map[string]error{"read": readErr, "fetch": fetchErr} {
		if !errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want unavailable", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Fetch(ctx, desc.Digest, desc.Size, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the pull: got %v, want canceled", err)
	}
}

// A source in an annotation counts only if containerd recorded the same one, because anybody can write
// an annotation.
func TestRepositories(t *testing.T) {
	n := newNode(t)
	tests := []struct {
		name, annotation string
		want             []Repository
	}{
		{"no reference", "", []Repository{{"aaa.evil", "x"}, {"good.example", "team/m"}}},
		{"reference", "good.example/team/m:1", []Repository{{"good.example", "team/m"}}},
		{"reference with a port", "good.example:5000/team/m@" + digest.FromString("x").String(), []Repository{{"good.example:5000", "team/m"}}},
		{"not recorded", "private.example/team/m:1", []Repository{{"aaa.evil", "x"}, {"good.example", "team/m"}}},
		{"another repository", "good.example/team:1", []Repository{{"aaa.evil", "x"}, {"good.example", "team/m"}}},
		{"nonsense", "//", []Repository{{"aaa.evil", "x"}, {"good.example", "team/m"}}},
	}
	desc := n.put(t, "application/octet-stream", []byte("table"), map[string]string{
		"containerd.io/distribution.source.good.example": "team/m",
		"containerd.io/distribution.source.aaa.evil":     "x",
	})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			desc.Annotations = map[string]string{"containerd.io/snapshot/cri.image-ref": test.annotation}
			got, err := n.differ.repositories(n.ctx, desc)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, test.want); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

// from returns the label with which containerd records the source of a blob.
func from(host, repositories string) map[string]string {
	return map[string]string{"containerd.io/distribution.source." + host: repositories}
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
