package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

const content = "0123456789abcdef"

func startBlob(t *testing.T) (r *Registry, d digest.Digest, url string) {
	r = StartRegistry(t, t.TempDir())
	a := Artifact{Blobs: map[digest.Digest][]byte{digest.FromString(content): []byte(content)}}
	d = digest.FromString(content)
	a.Manifest = []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/octet-stream","digest":"` +
		d.String() + `","size":16},"layers":[]}`)
	a.MediaType = "application/vnd.oci.image.manifest.v1+json"
	r.Push(t, "some/repository", "1", a)
	return r, d, "/v2/some/repository/blobs/" + d.String()
}

func get(t *testing.T, url, ranges string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// TestWire checks the effect of each fault on a real transfer.
func TestWire(t *testing.T) {
	r, d, path := startBlob(t)
	for _, tt := range []struct {
		name   string
		fault  Fault
		ranges string
		status int
		body   string
		broken bool
	}{
		{"none", Fault{}, "", 200, content, false},
		{"range", Fault{}, "bytes=4-7", 206, "4567", false},
		{"status", Fault{Status: 404}, "", 404, "", false},
		{"flip", Fault{Flip: true}, "", 200, "\xcf" + content[1:], false},
		{"cut", Fault{CutAfter: 5}, "", 200, "01234", true},
		{"short", Fault{Short: 5}, "", 200, "01234", false},
		{"no range", Fault{NoRange: true}, "bytes=4-7", 200, content, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fault.Match = Blob(d)
			defer r.Wire.Add(tt.fault)()
			r.Wire.Reset()
			status, body, err := get(t, "http://"+r.Host+path, tt.ranges)
			if status != tt.status || body != tt.body || (err != nil) != tt.broken {
				t.Errorf("got %d %q %v, want %d %q, broken %v", status, body, err, tt.status, tt.body, tt.broken)
			}
			if got := r.Wire.BlobBytes()[d]; got != int64(len(tt.body)) {
				t.Errorf("recorded bytes: got %d, want %d", got, len(tt.body))
			}
		})
	}
}

// TestWireTimes checks that a fault ends, and that a rate limits.
func TestWireTimes(t *testing.T) {
	r, d, path := startBlob(t)
	r.Wire.Add(Fault{Match: Blob(d), Status: 503, Times: 1})
	for _, want := range []int{503, 200} {
		if got, _, _ := get(t, "http://"+r.Host+path, ""); got != want {
			t.Errorf("status: got %d, want %d", got, want)
		}
	}
	r.Wire.Add(Fault{Match: Blob(d), Rate: 100})
	start := time.Now()
	if _, _, err := get(t, "http://"+r.Host+path, ""); err != nil {
		t.Fatal(err)
	}
	if got := time.Since(start); got < 150*time.Millisecond {
		t.Errorf("16 bytes at 100 a second took %v", got)
	}
}

// TestOllamaBehaviour checks that Ollama behaves as registry.ollama.ai is known to behave.
func TestOllamaBehaviour(t *testing.T) {
	r, d, path := startBlob(t)
	o := StartOllama(t, r)
	base := "http://" + o.Host
	for p, want := range map[string]int{"/v2/": 404, "/v2/some/repository/manifests/" + d.String(): 404, "/v2/some/repository/manifests/none": 404} {
		if got, _, err := get(t, base+p, ""); got != want || err != nil {
			t.Errorf("%s: got %d %v, want %d", p, got, err, want)
		}
	}
	resp, err := http.Get(base + "/v2/some/repository/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" || resp.ContentLength != -1 || resp.Header.Get("Docker-Content-Digest") != "" {
		t.Errorf("manifest: got %s, length %d, digest %q", got, resp.ContentLength, resp.Header.Get("Docker-Content-Digest"))
	}
	head, err := http.Head(base + "/v2/some/repository/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	if head.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("HEAD of a manifest: got %s", head.Status)
	}
	if status, body, err := get(t, base+path, "bytes=4-7"); status != 206 || body != "4567" || err != nil {
		t.Errorf("blob: got %d %q %v", status, body, err)
	}
	stay := errors.New("stay")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return stay }}
	if _, err := client.Get(base + path); !errors.Is(err, stay) {
		t.Errorf("blob: got %v, want a redirect", err)
	}
}

// failures is a TB that records errors.
type failures struct {
	TB
	messages []string
}

func (f *failures) Errorf(format string, args ...any) {
	f.messages = append(f.messages, fmt.Sprintf(format, args...))
}

// TestAstray checks that a server notices credentials of other servers, in all parts of a request.
func TestAstray(t *testing.T) {
	home, other := &origin{Handler: http.NotFoundHandler(), address: "127.0.0.1:1"}, &origin{Handler: http.NotFoundHandler(), address: "127.0.0.1:2"}
	Belongs("pass-word-1", home.address)
	other.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			fmt.Fprint(w, `{"token":"tok-en-1"}`)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://127.0.0.1:2/token"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	send := func(o *origin, method, target, body string, header ...string) []string {
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		o.ServeHTTP(httptest.NewRecorder(), r)
		f := &failures{TB: t}
		o.check(f)
		o.problems = nil
		return f.messages
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:pass-word-1"))
	for _, tt := range []struct {
		name         string
		o            *origin
		method, body string
		target       string
		header       []string
		bad          bool
	}{
		{"nothing", other, "GET", "", "/", nil, false},
		{"password at home", home, "GET", "", "/", []string{"Authorization", basic}, false},
		{"password elsewhere", other, "GET", "", "/", []string{"Authorization", basic}, true},
		{"in a form", other, "POST", "password=pass-word-1", "/token", []string{"Content-Type", "application/x-www-form-urlencoded"}, true},
		{"in an address", other, "GET", "", "/x?sig=pass-word-1", nil, true},
		{"in a header", other, "GET", "", "/x", []string{"X-Any", "x pass-word-1"}, true},
		{"a cookie", home, "GET", "", "/x", []string{"Cookie", "session=1"}, true},
		{"unknown", home, "GET", "", "/", []string{"Authorization", "Bearer whatever"}, true},
		{"token where it is from", other, "GET", "", "/", []string{"Authorization", "Bearer tok-en-1"}, false},
		{"token elsewhere", home, "GET", "", "/", []string{"Authorization", "Bearer tok-en-1"}, true},
	} {
		if got := send(tt.o, tt.method, tt.target, tt.body, tt.header...); (len(got) > 0) != tt.bad {
			t.Errorf("%s: %q, want something: %t", tt.name, got, tt.bad)
		}
	}
}
