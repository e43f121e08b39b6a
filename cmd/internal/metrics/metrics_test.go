package metrics

import (
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/prometheus/client_golang/prometheus"
)

// The number of values of the format label is bounded, whatever format is named by an image that
// others converted and a prefetch adopts.
func TestFormatLabel(t *testing.T) {
	m := New(nil, nil)
	for i := range 100 {
		m.Pull(api.KindPrefetch)(fmt.Sprint("stranger", i), nil)
	}
	series := make(chan prometheus.Metric, 200)
	m.pulls.Collect(series)
	if len(series) != 1 {
		t.Errorf("%d series for 100 unknown formats, want 1", len(series))
	}
}
