package huggingface_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

// many is the number of small files of a repository of manyFiles.
const many = 300

func manyFiles() map[string]converttest.HubFile {
	files := map[string]converttest.HubFile{"model.safetensors": {Data: []byte("tensors"), LFS: true}}
	for i := range many {
		files[fmt.Sprintf("configs/c%03d.json", i)] = converttest.HubFile{Data: fmt.Appendf(nil, `{"i":%d}`, i)}
	}
	return files
}

// newHub returns a Hub whose trees have one page.
func newHub(t *testing.T) *converttest.Hub {
	h := converttest.NewHub(t)
	h.Page = 1000
	return h
}

// rateLimit is what the Hub says when a limit is reached.
func rateLimit(seconds int) http.Header {
	return http.Header{"Ratelimit": {fmt.Sprintf(`"resolvers";r=0;t=%d`, seconds)}, "Ratelimit-Policy": {`"fixed window";"resolvers";q=3000;w=300`}}
}

// TestGoesOn: a resolve continues where the last one was refused, and another commit of the repository reads only what
// has changed.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	files := manyFiles()
	h.Push("Org/Many", "main", files)
	r := resolver(t, h, "")
	read := 0
	for _, n := range []int{100, 100} {
		h.Limit("", n, rateLimit(300))
		_, err := r.Open(t.Context(), "hf:Org/Many")
		if text := fmt.Sprint(err); !errdefs.IsUnavailable(err) || !strings.Contains(text, "HF_TOKEN") || strings.Contains(text, "docker login") {
			t.Fatalf("with %d requests: %v", n, err)
		}
		read += h.Count("GET /Org/Many/resolve/")
	}
	h.Limit("", 0, nil)
	open(t, r, "hf:Org/Many")
	// Those that are sent when another one is refused can be lost.
	if n := h.Count("/Org/Many/resolve/") - 1; n < many-read || n > many-read+2*3 || read < 2*90 {
		t.Errorf("after %d of %d files were read, %d were", read, many, n)
	}
	files["configs/c000.json"] = converttest.HubFile{Data: []byte("another")}
	h.Push("Org/Many", "main", files)
	open(t, r, "hf:Org/Many")
	if n := h.Count("/Org/Many/resolve/"); n != 1+1 {
		t.Errorf("another commit: %d files were read, and not the one that has changed", n-1)
	}
}

// TestDigestsOfOthers: the digest of a file in one repository says nothing about a file in another one with the same
// object ID, which is a SHA-1.
func TestDigestsOfOthers(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Push("Some/Body", "main", repository())
	h.Push("Org/Model", "main", repository())
	r := resolver(t, h, "")
	open(t, r, "hf:Some/Body")
	h.Count("")
	open(t, r, "hf:Org/Model")
	if n := h.Count("/Org/Model/resolve/"); n != 4+1 {
		t.Errorf("%d small files were read, want all four", n-1)
	}
}

// waiting returns a context that waits for limits. Each wait ends one of h: what follows has n requests.
func waiting(t *testing.T, h *converttest.Hub, n int, say http.Header) (ctx context.Context, waits *atomic.Int64) {
	t.Helper()
	waits = &atomic.Int64{}
	var mu sync.Mutex
	on := ""
	return remote.WithPatience(t.Context(), func(host string, until time.Time) {
		mu.Lock()
		defer mu.Unlock()
		switch left := time.Until(until); {
		case host == "" && on == "", host != "" && host != "hf.co", host != "" && (left <= 0 || left > 2*time.Second):
			t.Errorf("waits for %q, %v, after %q", host, left, on)
		case host != "":
			waits.Add(1)
			h.Limit("", n, say)
		}
		on = host
	}), waits
}

// TestLimit resolves a repository with more small files than the limit has requests (huggingface_hub#3342, #4361).
// Nothing is sent while it waits.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]http.Header{"RateLimit": rateLimit(1), "Retry-After": {"Retry-After": {"1"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.Push("Org/Many", "main", manyFiles())
			h.Limit("", 90, say)
			ctx, waits := waiting(t, h, 90, say)
			src, err := resolver(t, h, "").Open(ctx, "hf:Org/Many")
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			if n := waits.Load(); n < 3 || n > 4 {
				t.Errorf("waited %d times", n)
			}
			if n := h.Count("429"); n > 4*int(waits.Load()) {
				t.Errorf("%d requests were refused, in %d waits", n, waits.Load())
			}
		})
	}
}

// TestTwoNodes: nodes behind one address share a limit, and both resolve.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Push("Org/Many", "main", manyFiles())
	h.Limit("", 100, rateLimit(1))
	var nodes sync.WaitGroup
	for range 2 {
		r := resolver(t, h, "")
		ctx, _ := waiting(t, h, 100, rateLimit(1))
		nodes.Go(func() {
			src, err := r.Open(ctx, "hf:Org/Many")
			if err != nil {
				t.Error(err)
				return
			}
			src.Close()
		})
	}
	nodes.Wait()
	if n := h.Count("GET /Org/Many/resolve/"); n > 2*(many+1)+80 {
		t.Errorf("%d files were read", n)
	}
}

// TestLimitEnds: a wait ends with its caller, and one that is too long does not begin.
func TestLimitEnds(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Push("Org/Model", "main", repository())
	h.Limit("", 0, rateLimit(1000))
	ctx, cancel := context.WithCancel(t.Context())
	waits := 0
	patient := remote.WithPatience(ctx, func(host string, _ time.Time) {
		waits++
		cancel()
	})
	if _, err := resolver(t, h, "").Open(patient, "hf:Org/Model"); !errors.Is(err, context.Canceled) || waits != 2 {
		t.Errorf("cancelled: %v, told %d times", err, waits)
	}
	h.Limit("", 0, rateLimit(2*60*60))
	patient = remote.WithPatience(t.Context(), func(host string, until time.Time) { t.Errorf("waits for %q until %v", host, until) })
	if _, err := resolver(t, h, "").Open(patient, "hf:Org/Model"); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "2h0m0s") {
		t.Errorf("two hours: %v", err)
	}
}

// TestLimitOfToken: a token has a limit of its own. It is used when that of everybody is reached, and nothing waits.
func TestLimitOfToken(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Push("Org/Model", "main", repository())
	h.Limit("", 0, rateLimit(300))
	ctx := remote.WithPatience(t.Context(), func(host string, until time.Time) { t.Errorf("waits for %q until %v", host, until) })
	as := func(client *remote.Client) map[string]*remote.Repository {
		ref, err := resolve.ParseRef("hf:Org/Model")
		if err != nil {
			t.Fatal(err)
		}
		creds := huggingface.Credentials("hf_secret")
		pull, err1 := client.Repository(ref, &creds)
		node, err2 := client.NodeRepository(ref)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return map[string]*remote.Repository{"pull": pull, "node": node}
	}(resolver(t, h, "hf_secret").Upstream)
	for who, repo := range as {
		if _, err := repo.Manifest(ctx, "main"); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if n := h.Count("429"); n != 1 {
			t.Errorf("%s: %d requests were refused", who, n)
		}
	}
	h.Limit("hf_secret", 0, rateLimit(300))
	if _, err := as["node"].Manifest(t.Context(), "main"); !errdefs.IsUnavailable(err) || strings.Contains(err.Error(), "docker login") || strings.Contains(err.Error(), "HF_TOKEN") {
		t.Errorf("the limit of the token: %v", err)
	}
	if l := h.Leaked(); len(l) > 0 {
		t.Errorf("the token went to another host: %q", l)
	}
}
