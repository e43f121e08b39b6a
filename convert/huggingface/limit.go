package huggingface

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxPause limits the pause that a Hub can ask for. Its own windows have five minutes.
const maxPause = 24 * time.Hour

// pause returns for how long a refusal asks to send no requests, at least a second; 0 if it does not say.
//
//	Retry-After: 40
//	RateLimit: "api";r=12;t=210, "resolvers";r=0;t=40             how many requests are left, for how many seconds
//	RateLimit-Policy: "fixed window";"resolvers";q=3000;w=300     how many are allowed, in how many seconds
//
// https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-09
// https://huggingface.co/docs/hub/rate-limits
func pause(h http.Header, now time.Time) (d time.Duration) {
	after := h.Get("Retry-After")
	if at, err := http.ParseTime(after); err == nil {
		d = max(at.Sub(now), time.Second)
	} else if n, err := strconv.ParseUint(after, 10, 31); err == nil {
		d = max(time.Duration(n)*time.Second, time.Second)
	}
	for _, from := range []struct{ field, key string }{{"RateLimit", "t"}, {"RateLimit-Policy", "w"}} {
		if d > 0 {
			break
		}
		for item := range strings.SplitSeq(strings.Join(h.Values(from.field), ","), ",") {
			p := parameters(item)
			if n, ok := p[from.key]; ok && p["r"] == 0 {
				d = max(d, n, time.Second)
			}
		}
	}
	return min(d, maxPause)
}

// parameters returns the numbers in an item of a structured field, as seconds.
// https://www.rfc-editor.org/rfc/rfc9651#section-3.1.2
func parameters(item string) map[string]time.Duration {
	p := map[string]time.Duration{}
	for s := range strings.SplitSeq(item, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(s), "=")
		if n, err := strconv.ParseUint(value, 10, 31); err == nil {
			p[key] = time.Duration(n) * time.Second
		}
	}
	return p
}
