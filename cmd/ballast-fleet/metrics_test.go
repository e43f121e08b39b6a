package main

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/agent"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// TestMetrics: there is an agent on each node, so it has few series, and a controller has few for each set. Their names
// and texts are as Prometheus wants them.
func TestMetrics(t *testing.T) {
	setNodes.WithLabelValues("of-a-test", "ready").Set(1)
	defer setNodes.DeletePartialMatch(prometheus.Labels{"set": "of-a-test"})
	for what, tt := range map[string]struct {
		metrics prometheus.Collector
		want    string
	}{
		"agent":      {&agent.Agent{}, `ballast_fleet_models{phase="Ready"} 0`},
		"controller": {setNodes, `ballast_fleet_set_nodes{set="of-a-test",state="ready"} 1`},
	} {
		h, err := metricsHandler(tt.metrics)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		text := w.Body.String()
		if n := len(regexp.MustCompile(`(?m)^[^#\n]`).FindAllString(text, -1)); n > 10 || !strings.Contains(text, tt.want+"\n") {
			t.Errorf("%s: %d series:\n%s", what, n, text)
		}
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v, %v", what, problems, err)
		}
	}
}
