package transfer

import (
	"time"

	"golang.org/x/time/rate"
)

// A Limiter limits the rate of work in the background.
type Limiter struct{ limiter rate.Limiter }

// NewLimiter returns a Limiter for a rate in bytes a second; 0 is no limit.
func NewLimiter(bytes int64) *Limiter {
	l := &Limiter{}
	l.Set(bytes)
	return l
}

// Set changes the rate, also of running work.
func (l *Limiter) Set(bytes int64) {
	if bytes <= 0 {
		l.limiter.SetLimit(rate.Inf)
		return
	}
	l.limiter.SetBurst(int(max(4<<10, bytes/10))) // a tenth of a second: the longest wait of promoted work
	l.limiter.SetLimit(rate.Limit(bytes))
}

// Rate returns the rate in bytes a second; 0 is no limit.
func (l *Limiter) Rate() int64 {
	if !l.active() {
		return 0
	}
	return int64(l.limiter.Limit())
}

// active reports whether there is a limit.
func (l *Limiter) active() bool { return l.limiter.Limit() != rate.Inf }

// step returns how many bytes may be read at once, at most n.
func (l *Limiter) step(n int) int {
	if l.active() {
		n = min(n, l.limiter.Burst())
	}
	return n
}

// spend returns how many of n bytes that were read are within the limit now.
func (l *Limiter) spend(n int) int {
	if !l.active() {
		return n
	}
	part := l.step(n) // the limit may have become lower since the bytes were read
	if l.limiter.AllowN(time.Now(), part) {
		return part
	}
	return 0
}
