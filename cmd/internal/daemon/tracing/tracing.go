// Package tracing sends the spans of the daemon to a collector, if the usual variables of OpenTelemetry name one.
//
// A pull is one trace: containerd passes its span with each request to the snapshotter, the differ and the facade,
// and the steps of package span are below it. What a registry or a mirror is asked has no headers of a trace.
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// flushTime limits the time in which the last spans are sent.
const flushTime = 2 * time.Second

// parents reads the span of a caller. It is not the global one, which clients of registries would use.
var parents = propagation.TraceContext{}

// Traces are the spans of this process on their way to a collector. A nil Traces sends none.
type Traces struct{ provider *trace.TracerProvider }

// Start makes all spans of this process go to the collector of the environment, in protocol "grpc" or
// "http/protobuf". Without a protocol it returns nil. It does not wait for the collector; later errors are logged
// once a minute.
func Start(ctx context.Context, protocol, version string, log *slog.Logger) (*Traces, error) {
	if protocol == "" {
		return nil, nil
	}
	say := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		say.Do(func() { log.Warn("traces are not sent", "err", err) })
	}))
	var client otlptrace.Client = otlptracehttp.NewClient()
	if protocol == "grpc" {
		client = otlptracegrpc.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	process, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "ballastd"), attribute.String("service.version", version)),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		return nil, errors.Join(err, exporter.Shutdown(ctx))
	}
	t := &Traces{trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(process))}
	otel.SetTracerProvider(t.provider)
	return t, nil
}

// GRPC returns the options of a gRPC server whose requests are spans. Those of the periodic work of containerd are
// not: it has no pull to belong to.
func (t *Traces) GRPC() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithPropagators(parents),
		otelgrpc.WithFilter(func(r *stats.RPCTagInfo) bool {
			return !slices.Contains([]string{"Stat", "List", "Usage", "Cleanup"}, path.Base(r.FullMethodName))
		})))}
}

// HTTP returns a handler whose requests are spans.
func (t *Traces) HTTP(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, "facade", otelhttp.WithPropagators(parents),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + kind(r.URL.Path) }))
}

// kind returns what a path of a registry is about. Names of spans are few, whatever is asked.
func kind(p string) string {
	for _, k := range []string{"manifests", "blobs"} {
		if strings.Contains(p, "/"+k+"/") {
			return k
		}
	}
	if p == "/token" {
		return "token"
	}
	return "other"
}

// Close sends what is left, for at most 2 s.
func (t *Traces) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	return t.provider.Shutdown(ctx)
}
