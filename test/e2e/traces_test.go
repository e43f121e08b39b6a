package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A spanCollector is a collector of OpenTelemetry: it keeps the spans that it receives.
type spanCollector struct {
	mu    sync.Mutex
	spans []received
}

type received struct {
	*otlp.Span
	service string
}

func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, received{s, service})
			}
		}
	}
}

// all returns the spans so far.
func (c *spanCollector) all() []received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// above returns the names of a span and of those that it is in, from the outermost on, each with its service.
func above(spans []received, s received) (names []string) {
	for {
		names = append(names, s.service+" "+s.Name)
		i := slices.IndexFunc(spans, func(p received) bool { return string(p.SpanId) == string(s.ParentSpanId) })
		if i < 0 {
			slices.Reverse(names)
			return names
		}
		s = spans[i]
	}
}

// TestTraces pulls a private model as a kubelet does. All steps are in the trace of containerd's pull; no registry
// sees its headers, and no span has a secret.
func TestTraces(t *testing.T) {
	c := &spanCollector{}
	address := node.Serve(t, c)
	_, public := converttest.KeyPair(t, t.TempDir(), "team")
	n := node.StartNode(t, node.Options{
		Daemons: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + address, "OTEL_BSP_SCHEDULE_DELAY=100"},
		Config:  "[[verify.rule]]\nmatch = \"*\"\nmode = \"warn\"\nany = [{type = \"oms\", key = \"" + public + "\"}]\n",
	})
	b := converttest.ModelPackTarGzip(converttest.Files(weights(240, 1<<20)))
	ref := push(t, n, b)
	n.Registry.User, n.Registry.Password = "alice", aliceSecret
	n.Registry.Wire.Reset()
	if _, err := n.CRI(t).PullAs(ref, "", &cri.AuthConfig{Username: "alice", Password: aliceSecret}); err != nil {
		t.Fatal(err)
	}
	for _, r := range n.Registry.Wire.Requests() {
		if r.Traceparent != "" {
			t.Errorf("the registry got the header of a trace: %s %s", r.Method, r.Path)
		}
	}

	const pull = "containerd runtime.v1.ImageService/PullImage"
	var spans []received
	var mine map[string][]string // what each step of ballast is in
	wanted := []string{"resolve", "convert", "verify", "hydrate", "fetch", "publish", "mount"}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(node.Tick) {
		spans, mine = c.all(), map[string][]string{}
		for _, s := range spans {
			if step, ok := strings.CutPrefix(s.Name, "ballast."); ok {
				mine[step] = above(spans, s)
			}
		}
		if !slices.ContainsFunc(wanted, func(step string) bool { return mine[step] == nil || mine[step][0] != pull }) {
			break
		}
		if time.Now().After(deadline) {
			for _, s := range spans {
				t.Log(strings.Join(above(spans, s), " > "))
			}
			t.Fatalf("not all of %v are below %q", wanted, pull)
		}
	}
	const apply, head, get = "ballastd containerd.services.diff.v1.Diff/Apply", "ballastd HEAD manifests", "ballastd GET manifests"
	for step, in := range map[string][]string{
		"resolve": {head, get}, "convert": {head, get}, "verify": {head, get, apply}, "hydrate": {apply},
		"fetch": {"ballastd ballast.hydrate"}, "publish": {"ballastd ballast.fetch"}, "mount": {apply},
	} {
		path := mine[step]
		if parent := path[len(path)-2]; !slices.Contains(in, parent) {
			t.Errorf("%s is in %q, want one of %q", step, path, in)
		}
	}
	for _, s := range spans {
		if s.service == "ballastd" && strings.Contains(s.Span.String(), aliceSecret) {
			t.Errorf("span %s has the secret: %s", s.Name, s.Span)
		}
	}
}
