package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/prometheus/client_golang/prometheus"
)

// TestLogged says what the log has of a request at level debug, and that it has nothing above.
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
		h := logged(log, "facade request", handler)
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

// applierFunc is an Applier.
type applierFunc func(ocispec.Descriptor) error

func (f applierFunc) Apply(_ context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return desc, f(desc)
}

// TestCountingApplier says which layers count as a model that containerd waits for.
func TestCountingApplier(t *testing.T) {
	r := newPullRig(t)
	active := func() float64 {
		families, err := r.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "ballast_active_pulls" && m.GetLabel()[0].GetValue() == byContainerd {
					return m.GetGauge().GetValue()
				}
			}
		}
		t.Fatal("no gauge")
		return 0
	}
	a := &countingApplier{store: r.store, metrics: r.metrics, jobs: r.pulls, applied: func(context.Context) {}}
	for _, tt := range []struct {
		mediaType string
		fail      bool
		want      float64 // while it is applied
	}{{filetable.MediaTypeTableLayer, false, 1}, {filetable.MediaTypeTableLayer, true, 1}, {filetable.MediaTypeBlobLayer, false, 0}, {ocispec.MediaTypeImageLayer, false, 0}} {
		failure := errors.New("no")
		a.Applier = applierFunc(func(ocispec.Descriptor) error {
			if got := active(); got != tt.want {
				t.Errorf("%s: %v active, want %v", tt.mediaType, got, tt.want)
			}
			if tt.fail {
				return failure
			}
			return nil
		})
		_, err := a.Apply(t.Context(), ocispec.Descriptor{MediaType: tt.mediaType, Digest: r.table}, nil)
		if tt.fail != errors.Is(err, failure) {
			t.Errorf("%s: got %v", tt.mediaType, err)
		}
	}
	if got := active(); got != 0 {
		t.Errorf("at the end: %v active", got)
	}
	// What a stranger's image says, whoever asks for it, is not a value of a label; what is made here is.
	for _, format := range []string{"stranger 1", "ollama-list/mlx", "files", ""} {
		r.metrics.pulled(byPrefetch, format, 0, nil)
	}
	families, err := r.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "ballast_pull_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got[strings.Join(labels, " ")] = m.GetHistogram().GetSampleCount()
		}
	}
	// The format in the table is the word of who made it, and not one of ours.
	want := map[string]uint64{
		"by=containerd format=other result=ok": 1, "by=containerd format=other result=unknown": 1, "by=prefetch format=other result=ok": 1,
		"by=prefetch format=ollama-list result=ok": 1, "by=prefetch format=files result=ok": 1, "by=prefetch format=unknown result=ok": 1,
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("counts (got, want):\n%s", diff)
	}
}

// TestFormatLabel has a bounded number of formats, whatever an image says that others converted and a prefetch adopts.
func TestFormatLabel(t *testing.T) {
	m := newMetrics(nil, nil)
	for i := range 100 {
		m.pulled(byPrefetch, fmt.Sprint("stranger", i), time.Second, nil)
	}
	series := make(chan prometheus.Metric, 200)
	m.pulls.Collect(series)
	if len(series) != 1 {
		t.Errorf("%d series of 100 formats of strangers, want 1", len(series))
	}
}
