package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/agent"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// TestMetrics: there is an agent on each node, so it has few series, and a controller has few for each set. Their names
// and texts are as Prometheus wants them.
func TestMetrics(t *testing.T) {
	setNodes.WithLabelValues("of-a-test", "ready").Set(1)
	defer setNodes.DeletePartialMatch(prometheus.Labels{"set": "of-a-test"})
	elected := make(chan struct{})
	close(elected)
	c := &controller{elected: elected, pods: labels.Everything()}
	for name, ready := range map[string]core.ConditionStatus{"n1": core.ConditionTrue, "n2": core.ConditionFalse} {
		n := node()
		n.Name = name
		c.table.set(nil, n)
		p := &core.Pod{Spec: core.PodSpec{NodeName: name}, Status: core.PodStatus{Conditions: []core.PodCondition{{Type: core.PodReady, Status: ready}}}}
		p.Name = "pod-" + name
		c.table.set(nil, p)
	}
	for what, tt := range map[string]struct {
		metrics prometheus.Collector
		want    []string
	}{
		"agent":              {&agent.Agent{}, []string{`ballast_fleet_models{phase="Ready"} 0`}},
		"controller":         {c, []string{`ballast_fleet_set_nodes{set="of-a-test",state="ready"} 1`, `ballast_fleet_nodes{state="desired"} 2`, `ballast_fleet_nodes{state="ready"} 1`}},
		"another controller": {&controller{elected: make(chan struct{})}, nil},
	} {
		h, err := metricsHandler(tt.metrics)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		text := w.Body.String()
		if n := len(regexp.MustCompile(`(?m)^[^#\n]`).FindAllString(text, -1)); n > 10 || tt.want == nil && strings.Contains(text, "ballast_fleet_nodes{") {
			t.Errorf("%s: %d series:\n%s", what, n, text)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("%s has no %s:\n%s", what, want, text)
			}
		}
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v, %v", what, problems, err)
		}
	}
}

// A retries reports the lines of a log that say so.
type retries chan struct{}

func (r retries) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("trying again")) {
		r <- struct{}{}
	}
	return len(p), nil
}

// TestMetricsPortIsTaken: an agent runs while another process has the port of its metrics, and serves them afterwards.
// An address that cannot be is an error.
func TestMetricsPortIsTaken(t *testing.T) {
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(retries, 1)
	a := &app{kubeconfig: noCluster(t), log: slog.New(slog.NewTextHandler(said, nil))}
	start := func(ctx context.Context, address string) <-chan error {
		mgr, err := a.manager(manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := serveMetrics(mgr, address, &agent.Agent{}); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := start(ctx, squatter.Addr().String())
	select {
	case <-said:
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	}
	squatter.Close()
	for {
		resp, err := http.Get("http://" + squatter.Addr().String() + "/metrics")
		if err == nil {
			resp.Body.Close()
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := <-start(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "--metrics") {
		t.Errorf("got %v", err)
	}
}
