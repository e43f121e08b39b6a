package serve

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// Logged returns h with a log line for each request if the level is debug, without headers, which
// can contain credentials.
func Logged(log *slog.Logger, msg string, h http.Handler) http.Handler {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() { // even if the handler aborts the response
			attrs := []any{"method", r.Method, "path", r.URL.Path}
			for _, key := range []string{"ns", "name"} { // the subject of the request
				if v, _, _ := strings.Cut(r.URL.Query().Get(key), "?"); v != "" { // the query of a URL can be a signature
					attrs = append(attrs, key, v)
				}
			}
			log.Debug(msg, append(attrs, "status", s.status, "dur", time.Since(start))...)
		}()
		h.ServeHTTP(s, r)
	})
}

// A statusWriter records the status of a response.
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

// Unwrap gives http.ResponseController access to the underlying writer.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
