package transfer

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An Endpoint is a server that sources are read from. It belongs to no blob: what one transfer learns about
// a server counts for all. Its methods are safe for concurrent use, and do nothing for a nil Endpoint, which
// is an origin without memory.
type Endpoint struct {
	// Name is the address of the server. It has no credentials and can be shown to everybody.
	Name string

	// Mirror is true for a server that has copies of what another one, the origin, offers. It is asked
	// before the origin as long as it is well, and never has the last word on what the bytes are.
	Mirror bool

	// Patience is how long the first byte of an answer may take before another source is asked; zero
	// means a second. Below zero, the server is never left for being slow.
	Patience time.Duration

	// Gather is how long the first byte may take, and the next one after any other: Dragonfly sends a part of a piece
	// when it has all of that part, and some versions answer then. The longer one of Patience and Gather counts for the
	// first byte; of urgent work, Patience counts until the header. If it is set, no rate is measured over less than
	// Gather, and the endpoint is left below MinRate only, not because another one is faster: its nodes share their
	// links, so that all of them would be slow together and ask the origin, which makes them slower.
	//
	// For the same reason a byte may take LongGather, except of urgent work, while other requests get some: an endpoint
	// that has sent none for Gather hangs.
	Gather, LongGather time.Duration

	// Piece is the size in bytes of the aligned ranges that it is asked for; zero means that it is asked for
	// what is needed.
	Piece int64

	// Counts count what happens at it, and perhaps at others; required for a mirror. Of an origin only the bytes are
	// counted.
	Counts *Counts

	mu      sync.Mutex // guards the following
	rest    rest
	trial   bool      // a request is running although the last one failed
	avoided time.Time // it sent wrong bytes, and is not asked before
	rate    float64   // bytes per second of one request, as of rated
	rated   time.Time
	tried   time.Time // when a transfer was last given to it to learn its rate
	heard   time.Time // when bytes came; only if LongGather is set
}

// Counts count what happens at endpoints.
type Counts struct {
	Bytes atomic.Int64 // received
	Wrong atomic.Int64 // files or chunks with wrong bytes, of which the origin had the right ones

	mu   sync.Mutex // guards the following
	left map[Reason]int64
	last Left
}

// A Reason is why a mirror was left: a range that it was asked for had to come from elsewhere.
type Reason string

// The reasons.
const (
	Absent Reason = "absent" // it does not have the blob, or does not give it
	Failed Reason = "failed" // it did not answer, or broke off
	Slow   Reason = "slow"   // it was slower than MinRate, or much slower than others
)

// Reasons are all reasons.
var Reasons = []Reason{Absent, Failed, Slow}

// Left is one time that a mirror was left.
type Left struct {
	Reason Reason
	Text   string // of the error, at most maxLeft bytes
	At     time.Time
}

// maxLeft limits the text of an error that is kept: a mirror writes a part of it.
const maxLeft = 300

// Left returns how often the endpoints were left for a reason.
func (c *Counts) Left(r Reason) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left[r]
}

// Last returns the last time that one of the endpoints was left; zero if there is none.
func (c *Counts) Last() Left {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// leave counts that an endpoint is left.
func (c *Counts) leave(r Reason, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		c.left = map[Reason]int64{}
	}
	c.left[r]++
	text := ""
	if err != nil {
		text = err.Error()
	}
	if len(text) > maxLeft {
		text = strings.ToValidUTF8(text[:maxLeft], "") + "…"
	}
	c.last = Left{r, text, time.Now()}
}

// How mirrors are treated.
const (
	avoidFor = time.Hour        // how long a mirror is not asked after wrong bytes
	maxRest  = time.Minute      // longest pause after failures
	rateAge  = time.Minute      // how long a measured rate counts
	share    = 4                // a mirror may be slower than others by this factor
	brisk    = 1 << 20          // bytes per second below which a mirror is compared with an unknown source
	anew     = 10 * time.Second // between two such comparisons
	sample   = 256 << 10        // bytes of the smallest transfer that is measured
)

// A rest is a pause after failures: 1, 2, 4 … 60 seconds, or longer if a RetryAfterError says so.
type rest struct {
	failures int
	last     time.Time // of the failures
	until    time.Time
}

// failed records the failure of a request that began at a time, with its error. Failures of requests that ran at the
// same time count once. Those up to free have no pause but that of a RetryAfterError.
func (r *rest) failed(began time.Time, free int, err error) {
	now, d := time.Now(), atLeast(0, err)
	if r.failures == 0 || !began.Before(r.last) {
		r.failures++
		r.last = now
		if n := r.failures - free; n > 0 {
			d = max(d, time.Second<<min(n-1, 30))
		}
	}
	if until := now.Add(min(d, maxRest)); until.After(r.until) {
		r.until = until
	}
}

// isMirror reports whether e is a mirror.
func (e *Endpoint) isMirror() bool { return e != nil && e.Mirror }

// gather returns Gather, or 0 for a nil Endpoint.
func (e *Endpoint) gather() time.Duration {
	if e == nil {
		return 0
	}
	return e.Gather
}

// hear records that bytes have come. What sends pieces in bursts is well then, and not first at the end of a piece.
func (e *Endpoint) hear() {
	if e == nil || e.LongGather == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard, e.rest, e.trial = time.Now(), rest{}, false
}

// silent reports whether no request got bytes for Gather.
func (e *Endpoint) silent() bool {
	if e == nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.heard) >= e.Gather
}

// wait returns how long a byte may take at the moment: Gather or LongGather.
func (e *Endpoint) wait(c Class) time.Duration {
	if c == Urgent || e.silent() {
		return e.gather()
	}
	return max(e.Gather, e.LongGather)
}

// Resting returns until when the endpoint should be asked only after others.
func (e *Endpoint) Resting() time.Time {
	if !e.isMirror() {
		return time.Time{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.avoided.After(e.rest.until) {
		return e.avoided
	}
	return e.rest.until
}

// AvoidedUntil returns until when the endpoint is not asked because it sent wrong bytes.
func (e *Endpoint) AvoidedUntil() time.Time {
	if e == nil {
		return time.Time{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.avoided
}

// enter begins a request. After a failure, one request at a time finds out whether a mirror is well again:
// enter returns false for others that can go elsewhere (spare). The caller calls leave if it returns true.
func (e *Endpoint) enter(spare bool) bool {
	if !e.isMirror() {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rest.failures > 0 && spare && (e.trial || time.Now().Before(e.rest.until)) {
		return false
	}
	e.trial = e.rest.failures > 0
	return true
}

// An outcome is what the result of a request says about an Endpoint.
type outcome int

const (
	unclear outcome = iota // it was interrupted, or says nothing about the endpoint
	good                   // it did what was asked for
	absent                 // it does not have, or does not give, this blob
	unasked                // ErrNotAsked
	failed                 // it did not answer, or broke off
	slow                   // it was much slower than others, or than is useful
)

// leave ends a request that began at a time, with the error that led to the outcome.
func (e *Endpoint) leave(began time.Time, o outcome, err error) {
	if !e.isMirror() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trial = false
	switch o {
	case good:
		e.rest = rest{}
	case absent:
		e.Counts.leave(Absent, err)
		e.rest = rest{} // it answers
	case failed:
		e.Counts.leave(Failed, err)
		e.rest.failed(began, 0, err)
	case slow:
		e.Counts.leave(Slow, err)
		e.rest.failed(began, 0, err)
	}
}

// received records that a request received n bytes in a time, for its rate.
func (e *Endpoint) received(n int64, d time.Duration) {
	if e == nil || n == 0 || n < sample && d < look {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now, rate := time.Now(), float64(n)/max(d, time.Millisecond).Seconds()
	if now.Sub(e.rated) < rateAge {
		rate = (rate + e.rate) / 2
	}
	e.rate, e.rated = rate, now
}

// count counts received bytes.
func (e *Endpoint) count(n int) {
	if e != nil && e.Counts != nil {
		e.Counts.Bytes.Add(int64(n))
	}
}

// fasterThan returns why a mirror that gives rate bytes a second should be left for e: errSlow if e is known to be
// much faster, errCompare if its rate is unknown, for one transfer at a time; otherwise nil.
func (e *Endpoint) fasterThan(rate float64) error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch now := time.Now(); {
	case now.Sub(e.rated) < rateAge && rate*share < e.rate:
		return errSlow
	case now.Sub(e.rated) >= rateAge && rate < brisk && now.Sub(e.tried) >= anew:
		e.tried = now
		return errCompare
	}
	return nil
}

// ReportWrong records that the mirrors among sources sent wrong bytes of which an origin, right, then had the right
// ones: these mirrors are not asked for an hour. If right is a mirror too, nobody knows what the origin has.
func ReportWrong(log *slog.Logger, right Source, sources []Source) {
	if right.Endpoint.isMirror() {
		return
	}
	seen := map[*Endpoint]bool{}
	for _, src := range sources {
		e := src.Endpoint
		if !e.isMirror() || seen[e] {
			continue
		}
		seen[e] = true
		e.mu.Lock()
		e.avoided = time.Now().Add(avoidFor)
		e.mu.Unlock()
		e.Counts.Wrong.Add(1)
		log.Error("a mirror sent wrong bytes; it is not asked for an hour", "mirror", e.Name, "source", src.Name)
	}
}
