package node

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// pastWire is a header of requests of the set-up, which a Wire does not record.
const pastWire = "X-Past-Wire"

// Wire is an http.Handler in front of another one. It records requests and disturbs them with
// Faults.
type Wire struct {
	Next http.Handler

	mu        sync.Mutex // guards the following
	requests  []*Request
	faults    []*Fault
	rate      int64 // of the link, in bytes a second
	roundTrip time.Duration
	free      time.Time // when the link has transmitted everything so far
	answering int       // requests that are not answered yet
}

// Request is a recorded request with its response so far.
type Request struct {
	Method, Path, Range, UserAgent string
	Authorization, Traceparent     string
	Status                         int   // 0 before the response
	Bytes                          int64 // of the body; counted before the client can receive them
}

// Blob returns the digest of the requested blob, or "".
func (r Request) Blob() digest.Digest { return blobOf(r.Path) }

func blobOf(p string) digest.Digest {
	dir, last := path.Split(p)
	if !strings.HasSuffix(dir, "/blobs/") {
		return ""
	}
	return digest.Digest(last)
}

// Fault disturbs the requests that it matches. The zero value of each field has no effect.
type Fault struct {
	// Match selects requests; nil matches all.
	Match func(*http.Request) bool

	// Times is the number of requests to disturb; zero means all.
	Times int

	Status   int           // sent instead, with an empty body
	Header   http.Header   // added to the response
	CutAfter int64         // body bytes after which the connection breaks
	Flip     bool          // changes the first byte of each body
	Short    int64         // truncates the body, with a matching Content-Length
	NoRange  bool          // ignores ranges and sends the whole blob
	Delay    time.Duration // before the response
	Rate     int64         // bytes a second of each response

	seen int
}

// Blob matches GET requests for a blob.
func Blob(d digest.Digest) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == http.MethodGet && blobOf(r.URL.Path) == d }
}

// AnyBlob matches GET requests for blobs.
func AnyBlob(r *http.Request) bool { return r.Method == http.MethodGet && blobOf(r.URL.Path) != "" }

// Add adds a fault; the returned function removes it. If several match, the first applies.
func (w *Wire) Add(f Fault) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &f
	w.faults = append(w.faults, p)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range w.faults {
			if w.faults[i] == p {
				w.faults = append(w.faults[:i:i], w.faults[i+1:]...)
				return
			}
		}
	}
}

// Link makes all responses share a link with a rate in bytes a second, and delays each by a round
// trip. Zeros remove the limits.
func (w *Wire) Link(rate int64, roundTrip time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate, w.roundTrip = rate, roundTrip
}

// transmit waits until n bytes have been transmitted over the link.
func (w *Wire) transmit(n int) {
	w.mu.Lock()
	if w.rate == 0 {
		w.mu.Unlock()
		return
	}
	now := time.Now()
	if w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(time.Duration(float64(n) / float64(w.rate) * float64(time.Second)))
	until := w.free
	w.mu.Unlock()
	time.Sleep(time.Until(until))
}

// Requests returns the requests received since the start or the last Reset.
func (w *Wire) Requests() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Request, len(w.requests))
	for i, r := range w.requests {
		list[i] = *r
	}
	return list
}

// Drain waits until all received requests are answered or aborted.
func (w *Wire) Drain() {
	for {
		w.mu.Lock()
		n := w.answering
		w.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Reset drops the recorded requests.
func (w *Wire) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = nil
}

// BlobBytes returns the body bytes sent for each blob since the last Reset.
func (w *Wire) BlobBytes() map[digest.Digest]int64 {
	sum := map[digest.Digest]int64{}
	for _, r := range w.Requests() {
		if d := r.Blob(); d != "" && r.Method == http.MethodGet {
			sum[d] += r.Bytes
		}
	}
	return sum
}

func (w *Wire) fault(r *http.Request) Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		if (f.Match == nil || f.Match(r)) && (f.Times == 0 || f.seen < f.Times) {
			f.seen++
			return *f
		}
	}
	return Fault{}
}

// ServeHTTP implements http.Handler.
func (w *Wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get(pastWire) != "" {
		w.Next.ServeHTTP(rw, r)
		return
	}
	// Recorded now: other handlers may change the request, and the client may have the response
	// before this function returns.
	seen := &Request{Method: r.Method, Path: r.URL.Path, Range: r.Header.Get("Range"),
		UserAgent: r.UserAgent(), Authorization: r.Header.Get("Authorization"), Traceparent: r.Header.Get("Traceparent")}
	w.mu.Lock()
	w.requests = append(w.requests, seen)
	w.answering++
	roundTrip := w.roundTrip
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.answering--
	}()
	f := w.fault(r)
	out := &wireWriter{ResponseWriter: rw, wire: w, seen: seen, fault: f, start: time.Now()}
	time.Sleep(f.Delay + roundTrip)
	for k, v := range f.Header {
		rw.Header()[k] = v
	}
	if f.Status != 0 {
		out.WriteHeader(f.Status)
		return
	}
	if f.NoRange {
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	if f.Short > 0 {
		rec := httptest.NewRecorder()
		w.Next.ServeHTTP(rec, r)
		maps.Copy(rw.Header(), rec.Header())
		p := rec.Body.Bytes()
		p = p[:min(int64(len(p)), f.Short)]
		rw.Header().Set("Content-Length", strconv.Itoa(len(p)))
		out.WriteHeader(rec.Code)
		_, _ = out.Write(p)
		return
	}
	w.Next.ServeHTTP(out, r)
}

// wireWriter applies a fault to a body and counts its bytes.
type wireWriter struct {
	http.ResponseWriter
	wire   *Wire
	seen   *Request // guarded by Wire.mu
	fault  Fault
	start  time.Time
	status int
	n      int64 // body bytes written
}

// record changes the recorded request.
func (w *wireWriter) record(status int, bytes int64) {
	w.wire.mu.Lock()
	defer w.wire.mu.Unlock()
	w.seen.Status = status
	w.seen.Bytes += bytes
}

func (w *wireWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.record(status, 0)
	}
	if w.fault.NoRange {
		w.Header().Del("Accept-Ranges")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *wireWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.fault.Flip && w.n == 0 && len(p) > 0 {
		p = append([]byte(nil), p...)
		p[0] ^= 0xff
	}
	cut := false
	if left := w.fault.CutAfter - w.n; w.fault.CutAfter > 0 && int64(len(p)) > left {
		p, cut = p[:left], true
	}
	if w.fault.Rate > 0 {
		due := time.Duration(float64(w.n+int64(len(p))) / float64(w.fault.Rate) * float64(time.Second))
		time.Sleep(due - time.Since(w.start))
	}
	w.wire.transmit(len(p))
	w.record(w.status, int64(len(p)))
	n, err := w.ResponseWriter.Write(p)
	if n < len(p) {
		w.record(w.status, int64(n-len(p)))
	}
	w.n += int64(n)
	if cut {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// Unwrap gives http.ResponseController access to the connection.
func (w *wireWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
