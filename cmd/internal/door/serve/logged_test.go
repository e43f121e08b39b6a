package serve

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestLogged compares the log of a request at level debug, and expects nothing at higher levels.
func TestLogged(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		w.Write([]byte("x"))
	})
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var b strings.Builder
		log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level}))
		h := Logged(log, "facade request", handler)
		for _, target := range []string{"/v2/a/manifests/v1?ns=ghcr.io&token=s3cret", "/none"} {
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.SetBasicAuth("alice", "s3cret")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		got := b.String()
		if level == slog.LevelInfo {
			if got != "" {
				t.Errorf("level info: %s", got)
			}
			continue
		}
		for _, want := range []string{"msg=\"facade request\" method=GET path=/v2/a/manifests/v1 ns=ghcr.io status=200 dur=", "path=/none status=404 dur="} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in the log:\n%s", want, got)
			}
		}
		if strings.Contains(got, "s3cret") || strings.Contains(got, "Basic") {
			t.Errorf("the log has credentials:\n%s", got)
		}
	}
}
