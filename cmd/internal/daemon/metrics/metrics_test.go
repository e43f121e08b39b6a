package metrics

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/prometheus/client_golang/prometheus"
)

// The number of values of the format label is bounded, whatever format is named by an image that
// others converted and a prefetch adopts.
func TestFormatLabel(t *testing.T) {
	m := New(nil, wire.Version{}, nil)
	for i := range 100 {
		m.Pull(wire.KindPrefetch)(fmt.Sprint("stranger", i), nil)
	}
	series := make(chan prometheus.Metric, 200)
	m.pulls.Collect(series)
	if len(series) != 1 {
		t.Errorf("%d series for 100 unknown formats, want 1", len(series))
	}
}

// TestMirrorMetrics reads the metrics of a mirror.
func TestMirrorMetrics(t *testing.T) {
	m := New(storetest.Open(t, t.TempDir(), store.Options{}), wire.Version{}, slog.New(slog.DiscardHandler))
	m.WatchSources(func() int64 { return 7 }, func() []wire.Mirror {
		return []wire.Mirror{{Address: "http://a/v2", Bytes: 5, Left: map[string]int64{"slow": 2}, Wrong: 1}, {Address: "http://b/v2"}}
	})
	got := httptest.NewRecorder()
	m.Handler().ServeHTTP(got, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`ballast_registry_bytes_total 7`, `ballast_mirror_bytes_total{mirror="http://a/v2"} 5`, `ballast_mirror_failures_total{mirror="http://a/v2",reason="slow"} 2`,
		`ballast_mirror_wrong_total{mirror="http://a/v2"} 1`, `ballast_mirror_wrong_total{mirror="http://b/v2"} 0`,
	} {
		if !strings.Contains(got.Body.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, got.Body)
		}
	}
}

// TestBuildInfo reads the version of the daemon from its metrics.
func TestBuildInfo(t *testing.T) {
	m := New(storetest.Open(t, t.TempDir(), store.Options{}), wire.Version{Version: "v1", Revision: "abc", Date: "2026-11-23T01:02:03Z", Go: "go1"}, slog.New(slog.DiscardHandler))
	got := httptest.NewRecorder()
	m.Handler().ServeHTTP(got, httptest.NewRequest("GET", "/metrics", nil))
	const want = `ballast_build_info{date="2026-11-23T01:02:03Z",goversion="go1",revision="abc",version="v1"} 1`
	if !strings.Contains(got.Body.String(), want+"\n") {
		t.Errorf("no %s in\n%s", want, got.Body)
	}
}
