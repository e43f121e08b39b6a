package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/span"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// A server receives spans by gRPC.
type server struct {
	collector.UnimplementedTraceServiceServer
	got chan *otlp.ResourceSpans
}

func (s *server) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range r.ResourceSpans {
		s.got <- of
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestGRPC sends a span that has failed, and those of two requests to the facade, at the end of the process. Names of
// spans do not have what strangers ask for.
func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{got: make(chan *otlp.ResourceSpans, 10)}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=2")
	traces, err := Start(t.Context(), "grpc", "1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, end := span.Start(t.Context(), span.Fetch, span.Size(5))
	end(errors.New("the disk is full"), span.Received(3, 2)...)
	h := traces.HTTP(http.NotFoundHandler())
	for _, path := range []string{"/v2/team/model/manifests/1", "/whatever"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	if err := traces.Close(); err != nil {
		t.Fatal(err)
	}
	of := <-s.got
	process := of.Resource.String()
	for _, want := range []string{"ballastd", `"service.version"`, `string_value:"2"`, "host.name"} {
		if !strings.Contains(strings.ReplaceAll(process, ": ", ":"), want) {
			t.Errorf("the process lacks %s: %s", want, process)
		}
	}
	names := map[string]*otlp.Span{}
	for _, scope := range of.ScopeSpans {
		for _, s := range scope.Spans {
			names[s.Name] = s
		}
	}
	for _, want := range []string{"ballast.fetch", "GET manifests", "GET other"} {
		if names[want] == nil {
			t.Errorf("no span %q in %v", want, names)
		}
	}
	if f := names["ballast.fetch"]; f != nil && (f.Status.GetMessage() != "the disk is full" || len(f.Attributes) != 3) {
		t.Errorf("the failed step is %v", f)
	}
}

// TestNobodyListens wants work not to wait for a collector, and a stop only for a moment.
func TestNobodyListens(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+hangs.Addr().String())
		traces, err := Start(t.Context(), protocol, "1", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for range 10_000 {
			_, end := span.Start(t.Context(), span.Fetch)
			end(nil)
		}
		start := time.Now()
		if err := traces.Close(); err == nil {
			t.Errorf("%s: spans were sent to nobody", protocol)
		}
		if dur := time.Since(start); dur > 20*flushTime {
			t.Errorf("%s: the stop took %v", protocol, dur)
		}
	}
}

// TestOff wants nothing without a protocol.
func TestOff(t *testing.T) {
	traces, err := Start(t.Context(), "", "1", nil)
	if traces != nil || err != nil || traces.GRPC() != nil || traces.Close() != nil {
		t.Errorf("got %v, %v", traces, err)
	}
}
