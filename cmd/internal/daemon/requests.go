package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// logged returns h, with a line in the log for each request if the level is debug. Headers are
// left out: they have credentials.
func logged(log *slog.Logger, msg string, h http.Handler) http.Handler {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() { // also if the handler aborts the answer
			attrs := []any{"method", r.Method, "path", r.URL.Path}
			for _, key := range []string{"ns", "name"} { // what the path is about
				if v, _, _ := strings.Cut(r.URL.Query().Get(key), "?"); v != "" { // a URL can be signed
					attrs = append(attrs, key, v)
				}
			}
			log.Debug(msg, append(attrs, "status", s.status, "dur", time.Since(start))...)
		}()
		h.ServeHTTP(s, r)
	})
}

// A statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
	sent   bool
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if !w.sent && status >= http.StatusOK {
		w.status, w.sent = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(p []byte) (int, error) {
	w.sent = true
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach what w wraps.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
