package carton_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// A server is a web server that counts requests and the bytes that it sends.
type server struct {
	*httptest.Server

	mu   sync.Mutex
	sent map[string]int64
	reqs map[string][]string // method and range
}

func serve(t *testing.T, handlers map[string]http.HandlerFunc) *server {
	s := &server{sent: map[string]int64{}, reqs: map[string][]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.reqs[r.URL.Path] = append(s.reqs[r.URL.Path], r.Method+" "+r.Header.Get("Range"))
		s.mu.Unlock()
		h, ok := handlers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h(&counted{w, s, r.URL.Path}, r)
	}))
	t.Cleanup(s.Close)
	return s
}

type counted struct {
	http.ResponseWriter
	s    *server
	path string
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.sent[c.path] += int64(n)
	return n, err
}

func (s *server) bytes(path string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[path]
}

func (s *server) requests(path string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.reqs[path]...)
}

func content(p []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
	}
}

// noRanges answers every request with the whole content.
func noRanges(p []byte, length bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if length {
			w.Header().Set("Content-Length", fmt.Sprint(len(p)))
		} else {
			w.(*counted).ResponseWriter.(http.Flusher).Flush()
		}
		w.Write(p)
	}
}

func options(t *testing.T) carton.Options {
	return carton.Options{HTTP: http.DefaultClient.Do, TempDir: t.TempDir()}
}

func openURL(t *testing.T, url string, o carton.Options) carton.Source {
	t.Helper()
	src, err := carton.OpenURL(context.Background(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestURLRequests counts the requests for a model, which are two, and the bytes for its files.
func TestURLRequests(t *testing.T) {
	weights := storetest.Random(4, 20<<20)
	want := converttest.GoodCarton(weights)
	s := serve(t, map[string]http.HandlerFunc{"/m.carton": content(want.Bytes())})
	c := open(t, openURL(t, s.URL+"/m.carton", options(t)), carton.Options{})
	m, err := c.Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.bytes("/m.carton"); got > 100<<10 {
		t.Errorf("%d bytes were read for the model", got)
	}
	if got := s.requests("/m.carton"); len(got) != 2 {
		t.Errorf("got requests %q for the model, want the end of the archive and carton.toml", got)
	}
	before := s.bytes("/m.carton")
	files, err := hydrate(t, m, c.Fetcher())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, want, files)
	// The stored weights once; the first chunk of the compressed ones twice.
	if got, most := s.bytes("/m.carton")-before, int64(2*len(weights)+10<<20); got > most {
		t.Errorf("%d bytes were read for the files, more than %d", got, most)
	}
}

func TestURLWithoutRangesIsCopied(t *testing.T) {
	want := converttest.GoodCarton(storetest.Random(5, 9<<20))
	for name, length := range map[string]bool{"with length": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, map[string]http.HandlerFunc{"/m.carton": noRanges(want.Bytes(), length)})
			o := options(t)
			compare(t, want, pull(t, openURL(t, s.URL+"/m.carton", o), o))
			if got := s.requests("/m.carton"); len(got) != 1 {
				t.Errorf("requests: %q", got)
			}
			left, err := os.ReadDir(o.TempDir)
			if err != nil || len(left) > 0 {
				t.Errorf("files left in the temporary directory: %v, error %v", left, err)
			}
			o.MaxTemp = 1 << 20
			if _, err := carton.OpenURL(context.Background(), s.URL+"/m.carton", o); !errdefs.IsResourceExhausted(err) {
				t.Errorf("above the limit: got error %v", err)
			}
			o.TempDir = ""
			if _, err := carton.OpenURL(context.Background(), s.URL+"/m.carton", o); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("without a directory: got error %v", err)
			}
		})
	}
}

// TestURLWithoutSuffixRanges reads from a server that does not support ranges from the end.
func TestURLWithoutSuffixRanges(t *testing.T) {
	want := converttest.GoodCarton([]byte("weights"))
	p := want.Bytes()
	s := serve(t, map[string]http.HandlerFunc{"/m.carton": func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Range"), "bytes=-") {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		content(p)(w, r)
	}})
	o := options(t)
	compare(t, want, pull(t, openURL(t, s.URL+"/m.carton", o), o))
}

func TestURLErrorCategories(t *testing.T) {
	p := converttest.GoodCarton([]byte("weights")).Bytes()
	ranged := func(cr string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", cr)
			w.WriteHeader(http.StatusPartialContent)
			w.Write(p)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) }
	}
	s := serve(t, map[string]http.HandlerFunc{
		"/401": status(401), "/403": status(403), "/410": status(410), "/500": status(500), "/416": status(416),
		"/coded": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Encoding", "gzip"); w.Write(p) },
		"/html":  noRanges([]byte("<html>"), true),
		"/cr1":   ranged("bytes 0-9"), "/cr2": ranged("bytes 5-4/10"), "/cr3": ranged("bytes 0-10/10"), "/cr4": ranged("bytes 0-1/99999999999999999999"),
		"/cr5": ranged("bytes -1-1/10"), "/short": ranged(fmt.Sprintf("bytes 0-%d/%d", len(p)+99, len(p)+100)),
	})
	for _, c := range []struct {
		url  string
		want func(error) bool
	}{
		{s.URL + "/404", errdefs.IsNotFound}, {s.URL + "/401", errdefs.IsUnauthorized}, {s.URL + "/403", errdefs.IsPermissionDenied},
		{s.URL + "/410", errdefs.IsNotFound}, {s.URL + "/500", errdefs.IsUnavailable}, {s.URL + "/416", errdefs.IsFailedPrecondition},
		{s.URL + "/coded", errdefs.IsNotImplemented}, {s.URL + "/html", errdefs.IsInvalidArgument},
		{s.URL + "/cr1", errdefs.IsUnavailable}, {s.URL + "/cr2", errdefs.IsUnavailable}, {s.URL + "/cr3", errdefs.IsUnavailable},
		{s.URL + "/cr4", errdefs.IsUnavailable}, {s.URL + "/cr5", errdefs.IsUnavailable}, {s.URL + "/short", errdefs.IsUnavailable},
		{"ftp://127.0.0.1/x", errdefs.IsPermissionDenied}, {"file:///etc/passwd", errdefs.IsPermissionDenied},
		{"https://user:secret@example.com/", errdefs.IsPermissionDenied}, {"https:///x", errdefs.IsPermissionDenied},
		{"%zz", errdefs.IsPermissionDenied}, {"http://127.0.0.1:1/?token=secret", errdefs.IsUnavailable},
	} {
		src, err := carton.OpenURL(context.Background(), c.url, options(t))
		if err == nil {
			_, err = carton.Open(context.Background(), src, options(t))
		}
		if !c.want(err) {
			t.Errorf("%s: got error %v", c.url, err)
		}
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("the error has the secret: %v", err)
		}
	}
	o := options(t)
	o.HTTP = nil
	if _, err := carton.OpenURL(context.Background(), "https://example.com/", o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no client: got error %v", err)
	}
}

// TestChangedURLIsDetected replaces the archive between Open and Fetch.
func TestChangedURLIsDetected(t *testing.T) {
	a := converttest.GoodCarton(storetest.Random(6, 1<<20))
	b := converttest.GoodCarton(storetest.Random(7, 1<<20))
	for name, etag := range map[string][2]string{"by tag": {`"a"`, `"b"`}, "by size": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			p, tag := a.Bytes(), etag[0]
			var mu sync.Mutex
			s := serve(t, map[string]http.HandlerFunc{"/m.carton": func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if tag != "" {
					w.Header().Set("ETag", tag)
				}
				content(p)(w, r)
			}})
			o := options(t)
			c := open(t, openURL(t, s.URL+"/m.carton", o), o)
			m, err := c.Model(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			p, tag = b.Bytes(), etag[1]
			if tag == "" {
				p = append(p, 0)
			}
			mu.Unlock()
			if _, err := hydrate(t, m, c.Fetcher()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// encode encodes p as an HTTP server does.
func encode(t *testing.T, coding string, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "br":
		w = brotli.NewWriterLevel(&b, 1)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "raw deflate":
		w, _ = flate.NewWriter(&b, 1)
	case "zstd":
		return converttest.Zstd(p)
	default:
		return p
	}
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func coded(header string, p []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if header != "" {
			w.Header().Set("Content-Encoding", header)
		}
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", fmt.Sprint(len(p)))
			return
		}
		w.Write(p)
	}
}

// linked returns a small carton whose weights are only at URLs.
func linked(weights []byte, urls ...string) converttest.Carton {
	return converttest.Carton{Files: []file{
		{Path: "carton.toml", Data: []byte("spec_version = 1\n[runner]\nrunner_name = \"noop\"\nrequired_framework_version = \"1\"\n")},
		{Path: "model/weights.bin", Data: weights, URLs: urls},
	}}
}

// TestLinksInAllEncodings pulls weights that are only in LINKS, with each Content-Encoding.
func TestLinksInAllEncodings(t *testing.T) {
	for _, size := range []int{0, 1, 100_000, 9 << 20} {
		weights := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		handlers := map[string]http.HandlerFunc{
			"/plain":   content(weights),
			"/two":     coded("gzip, zstd", encode(t, "zstd", encode(t, "gzip", weights))),
			"/x-gzip":  coded("X-Gzip", encode(t, "gzip", weights)),
			"/raw":     coded("deflate", encode(t, "raw deflate", weights)),
			"/nohead":  func(w http.ResponseWriter, r *http.Request) { noHead(weights, w, r) },
			"/chunked": noRanges(weights, false),
		}
		for _, c := range []string{"zstd", "gzip", "br", "deflate", "identity"} {
			handlers["/"+c] = coded(c, encode(t, c, weights))
		}
		s := serve(t, handlers)
		for path := range handlers {
			t.Run(fmt.Sprintf("%d%s", size, path), func(t *testing.T) {
				c := linked(weights, s.URL+path)
				compare(t, c, pull(t, at(c.Bytes()), options(t)))
			})
		}
	}
}

func noHead(p []byte, w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.Write(p)
}

// TestLinkedDescription pulls a carton whose files are all in LINKS, including carton.toml.
func TestLinkedDescription(t *testing.T) {
	c := converttest.GoodCarton([]byte("weights"))
	handlers := map[string]http.HandlerFunc{}
	for _, f := range c.Files {
		handlers["/"+digest.FromBytes(f.Data).Encoded()] = coded("zstd", encode(t, "zstd", f.Data))
	}
	s := serve(t, handlers)
	for i, f := range c.Files {
		c.Files[i].URLs = []string{s.URL + "/" + digest.FromBytes(f.Data).Encoded()}
	}
	compare(t, c, pull(t, at(c.Bytes()), options(t)))
}

// TestLinksFailover pulls weights whose first URL fails in some way, and the second one works.
func TestLinksFailover(t *testing.T) {
	for _, size := range []int{100, 9 << 20} {
		weights := storetest.Random(8, size)
		other := storetest.Random(9, size)
		s := serve(t, map[string]http.HandlerFunc{
			"/good":     content(weights),
			"/html":     noRanges([]byte("<html>not here</html>"), true),
			"/html200":  func(w http.ResponseWriter, r *http.Request) { noHead([]byte("<html>"), w, r) },
			"/500":      func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
			"/nogzip":   coded("gzip", weights),
			"/nozstd":   coded("zstd", weights),
			"/nobr":     coded("br", weights),
			"/unknown":  coded("compress", weights),
			"/toomany":  coded("gzip, gzip, gzip, gzip", weights),
			"/short":    func(w http.ResponseWriter, r *http.Request) { cut(weights, w, r) },
			"/encoded":  coded("", encode(t, "gzip", weights)[:min(size, 1000)]),
			"/other":    coded("", other),
			"/redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) },
			"/loop":     func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) },
		})
		for _, bad := range []string{
			s.URL + "/404", s.URL + "/500", s.URL + "/nogzip", s.URL + "/nozstd", s.URL + "/unknown", s.URL + "/toomany", s.URL + "/loop",
			s.URL + "/redirect", "file:///etc/passwd", "ftp://example.com/x", "https://user@example.com/", "http://127.0.0.1:1/", "", "%zz",
			"https://" + strings.Repeat("x", 10_000), s.URL + "/other", s.URL + "/short",
			s.URL + "/html", s.URL + "/html200", s.URL + "/encoded", s.URL + "/nobr",
		} {
			t.Run(fmt.Sprintf("%d %.40s", size, strings.TrimPrefix(bad, s.URL)), func(t *testing.T) {
				c := linked(weights, bad, s.URL+"/good")
				o := open(t, at(c.Bytes()), options(t))
				m, err := o.Model(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				f := o.Fetcher()
				files, err := hydrate(t, m, f)
				if errdefs.IsDataLoss(err) && size > 4<<20 {
					files, err = hydrate(t, m, f) // the next attempt starts with the next URL
				}
				if err != nil {
					t.Fatal(err)
				}
				compare(t, c, files)
			})
		}
	}
}

// cut sends half of a body.
func cut(p []byte, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", fmt.Sprint(len(p)))
	if r.Method != http.MethodHead {
		w.Write(p[:len(p)/2])
	}
}

// TestLinksErrorCategories fetches weights whose only URL fails.
func TestLinksErrorCategories(t *testing.T) {
	weights := storetest.Random(10, 100_000)
	s := serve(t, map[string]http.HandlerFunc{
		"/other":   coded("", storetest.Random(11, 100_000)),
		"/encoded": coded("", encode(t, "gzip", weights)),
		"/nogzip":  coded("gzip", weights),
		"/good":    content(weights),
	})
	one := func(url string, o carton.Options) error {
		c := linked(weights, url)
		x := open(t, at(c.Bytes()), o)
		m, err := x.Model(context.Background())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		d := digest.FromBytes(weights)
		body, _, err := x.Fetcher().Fetch(ctx, d, m.Table.Blobs[indexOf(m.Table.Blobs, d)].Size, 0, int64(len(weights)))
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.ReadAll(body)
		return err
	}
	for _, c := range []struct {
		url  string
		want func(error) bool
	}{
		{s.URL + "/other", errdefs.IsDataLoss}, {s.URL + "/encoded", func(err error) bool { return err != nil }},
		{s.URL + "/nogzip", func(err error) bool { return err != nil }}, {s.URL + "/404", errdefs.IsNotFound},
		{"file:///etc/passwd", errdefs.IsPermissionDenied}, {"ftp://example.com/x", errdefs.IsPermissionDenied},
	} {
		if err := one(c.url, options(t)); !c.want(err) {
			t.Errorf("%s: got error %v", c.url, err)
		}
	}
	o := options(t)
	o.HTTP = nil
	if err := one(s.URL+"/good", o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no client: got error %v", err)
	}
}

func indexOf(blobs []filetable.Blob, d digest.Digest) int {
	for i, b := range blobs {
		if b.Digest == d {
			return i
		}
	}
	return -1
}

// TestLinksAreLimited opens cartons whose URLs send more than Options.MaxLinked, encoded in a few
// bytes, or without a size, and a URL that sends more than the size of the file.
func TestLinksAreLimited(t *testing.T) {
	var b bytes.Buffer
	w := brotli.NewWriterLevel(&b, 1)
	zeros := make([]byte, 1<<20)
	for range 64 {
		w.Write(zeros)
	}
	w.Close()
	if b.Len() > 64<<10 {
		t.Fatalf("the bomb has %d bytes", b.Len())
	}
	s := serve(t, map[string]http.HandlerFunc{"/bomb": coded("br", b.Bytes()), "/plain": content([]byte("weights"))})
	c := linked([]byte("weights"), s.URL+"/bomb")
	o := options(t)
	o.MaxLinked = 10 << 20
	if _, err := open(t, at(c.Bytes()), o).Model(context.Background()); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), carton.LimitLinked) {
		t.Errorf("size: got error %v", err)
	}
	// Many files share the limit.
	unsized := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Write(make([]byte, 6<<20)) // in chunks, without Content-Length
	}
	two := serve(t, map[string]http.HandlerFunc{"/a": unsized, "/b": unsized})
	one := linked([]byte("weights"), two.URL+"/a")
	if _, err := open(t, at(one.Bytes()), o).Model(context.Background()); err != nil {
		t.Errorf("one of 6 MiB: %v", err)
	}
	both := one.With(file{Path: "model/more.bin", Data: []byte("more"), URLs: []string{two.URL + "/b"}})
	if _, err := open(t, at(both.Bytes()), o).Model(context.Background()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("two of 6 MiB: got error %v", err)
	}
	// The first URL reports the size, the second is the bomb.
	x := open(t, at(c.Bytes()), o)
	body, _, err := x.Fetcher().Fetch(context.Background(), digest.FromString("weights"), 7, 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if p, err := io.ReadAll(body); err == nil || len(p) > 7 {
		t.Errorf("got %d bytes, error %v", len(p), err)
	}
}

// TestLinksRequestsAreLimited opens a carton with a URL for each of many files.
func TestLinksRequestsAreLimited(t *testing.T) {
	var requests, now, most atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		w.Header().Set("Content-Length", "4")
	}))
	defer s.Close()
	c := linked([]byte("weights"), s.URL)
	for i := range 2100 {
		c.Files = append(c.Files, file{Path: fmt.Sprintf("model/more/%d", i), Data: fmt.Appendf(nil, "%4d", i), URLs: []string{s.URL}})
	}
	_, err := open(t, at(c.Bytes()), options(t)).Model(context.Background())
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), carton.LimitRequests) {
		t.Errorf("got error %v", err)
	}
	if requests.Load() > 2000 || most.Load() > 4 {
		t.Errorf("%d requests, %d at a time", requests.Load(), most.Load())
	}
}

// TestLinkedWindow reads a body whose zstd window is larger than HTTP allows.
func TestLinkedWindow(t *testing.T) {
	p := storetest.Random(1, 20<<20)
	for window, ok := range map[int]bool{8 << 20: true, 16 << 20: false} {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			t.Fatal(err)
		}
		w.Write(p)
		w.Close()
		s := serve(t, map[string]http.HandlerFunc{"/w": coded("zstd", b.Bytes())})
		_, err = open(t, at(linked(p, s.URL+"/w").Bytes()), options(t)).Model(context.Background())
		if ok != (err == nil) {
			t.Errorf("window of %d bytes: got error %v", window, err)
		}
	}
}

// TestFetchRanges fetches ranges of stored and compressed members, and invalid ranges.
func TestFetchRanges(t *testing.T) {
	weights := storetest.Random(12, 100_000)
	c := converttest.GoodCarton(weights)
	f := open(t, at(c.Bytes()), carton.Options{}).Fetcher()
	ctx := context.Background()
	d := digest.FromBytes(weights)
	size := int64(len(weights))
	for _, r := range [][2]int64{{0, size}, {0, 1}, {size - 1, 1}, {5, 70_000}, {size, 0}} {
		body, start, err := f.Fetch(ctx, d, size, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(body)
		body.Close()
		if err != nil || start != r[0] || !bytes.Equal(p, weights[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v: got %d bytes from %d, error %v", r, len(p), start, err)
		}
	}
	for _, r := range [][2]int64{{-1, 1}, {0, -1}, {0, size + 1}, {size + 1, 0}} {
		if _, _, err := f.Fetch(ctx, d, size, r[0], r[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("range %v: got error %v", r, err)
		}
	}
	if _, _, err := f.Fetch(ctx, d, size+1, 0, 1); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another size: got error %v", err)
	}
	if _, _, err := f.Fetch(ctx, digest.FromString("missing"), 1, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("missing: got error %v", err)
	}
	// The middle of a compressed member starts at 0.
	text := c.Files[3].Data
	body, start, err := f.Fetch(ctx, digest.FromBytes(text), int64(len(text)), 10, 10)
	if err != nil || start != 0 {
		t.Errorf("compressed: got start %d, error %v", start, err)
	}
	body.Close()
}
