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

// pastWire is a request header that lets the set-up's own requests pass unseen.
const pastWire = "X-Past-Wire"

// Wire is an http.Handler in front of another one. It records what crosses it and spoils
// what a Fault says.
type Wire struct {
	Next http.Handler

	mu        sync.Mutex // guards what follows
	requests  []Request
	faults    []*Fault
	rate      int64 // of the link, in bytes a second
	roundTrip time.Duration
	free      time.Time // when what was sent so far has gone over the link
	answering int       // requests that are not recorded yet
}

// Request is one request that crossed a wire, with what was answered.
type Request struct {
	Method, Path, Range, UserAgent string
	Authorization                  string
	Status                         int
	Bytes                          int64 // of the body, as sent
}

// Blob returns the digest if the request is for a blob.
func (r Request) Blob() digest.Digest { return blobOf(r.Path) }

func blobOf(p string) digest.Digest {
	dir, last := path.Split(p)
	if !strings.HasSuffix(dir, "/blobs/") {
		return ""
	}
	return digest.Digest(last)
}

// Fault says what goes wrong with the requests it matches. The zero value of each field
// changes nothing.
type Fault struct {
	// Match selects requests; nil matches all.
	Match func(*http.Request) bool

	// Times is how many requests it spoils; zero means all.
	Times int

	Status   int           // answered instead, with an empty body
	Header   http.Header   // added to the answer
	CutAfter int64         // body bytes after which the connection breaks
	Flip     bool          // the first byte of each body is wrong
	Short    int64         // the entity ends after so many bytes, and says so
	NoRange  bool          // ranges are ignored, the whole blob is answered
	Delay    time.Duration // before the answer
	Rate     int64         // bytes per second of each answer

	seen int
}

// Blob matches GET requests for a blob.
func Blob(d digest.Digest) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == http.MethodGet && blobOf(r.URL.Path) == d }
}

// AnyBlob matches GET requests for blobs.
func AnyBlob(r *http.Request) bool { return r.Method == http.MethodGet && blobOf(r.URL.Path) != "" }

// Add puts a fault on the wire; the function returned takes it off. Of several that match,
// the first counts.
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

// Link makes all answers together share a link of so many bytes a second, and each wait for a round
// trip first. Zeros make it as fast as the machine is.
func (w *Wire) Link(rate int64, roundTrip time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate, w.roundTrip = rate, roundTrip
}

// transmit waits until n bytes have gone over the link.
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

// Requests returns the requests answered since the start or the last Reset.
func (w *Wire) Requests() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Request(nil), w.requests...)
}

// Drain waits until all requests that have come are answered or given up, and recorded.
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

// Reset forgets the requests.
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
	w.mu.Lock()
	w.answering++
	w.mu.Unlock()
	f := w.fault(r)
	out := &wireWriter{ResponseWriter: rw, wire: w, fault: f, start: time.Now()}
	// Registered first, so that a broken connection is recorded too. Read the fields now:
	// handlers below may change the request.
	seen := Request{Method: r.Method, Path: r.URL.Path, Range: r.Header.Get("Range"),
		UserAgent: r.UserAgent(), Authorization: r.Header.Get("Authorization")}
	defer func() {
		seen.Status, seen.Bytes = out.status, out.n
		w.mu.Lock()
		defer w.mu.Unlock()
		w.requests = append(w.requests, seen)
		w.answering--
	}()
	w.mu.Lock()
	roundTrip := w.roundTrip
	w.mu.Unlock()
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

// wireWriter does to the body what the fault says, and counts it.
type wireWriter struct {
	http.ResponseWriter
	wire   *Wire
	fault  Fault
	start  time.Time
	status int
	n      int64 // body bytes written
}

func (w *wireWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
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
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	if cut {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *wireWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
