// Package span records the steps of a pull as spans of OpenTelemetry. The program decides where they go; until it
// has set a tracer provider, a span is not recorded.
//
// A step is something that somebody can wait for: at most a few for each blob of a model, never one for each chunk
// or request.
package span

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Names of spans.
const (
	Resolve = "ballast.resolve" // a manifest is read from the registry and classified
	Convert = "ballast.convert" // a model becomes an image: configurations and headers are read, and documents made
	Verify  = "ballast.verify"  // signatures are fetched and checked by the rules
	Hydrate = "ballast.hydrate" // somebody waits for a complete model
	Fetch   = "ballast.fetch"   // a blob is downloaded, hashed as it arrives, unpacked and published
	Publish = "ballast.publish" // verified files are synced and become objects
	Mount   = "ballast.mount"   // the tree of files is made that containers mount
)

// End ends a span with the error of its step or nil, and with what is known only then.
type End func(err error, attributes ...attribute.KeyValue)

// Start starts a span below that of ctx.
func Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, End) {
	ctx, s := otel.Tracer("github.com/ballast-dev/ballast").Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, func(err error, attributes ...attribute.KeyValue) {
		s.SetAttributes(attributes...)
		if err != nil {
			s.SetStatus(codes.Error, err.Error())
		}
		s.End()
	}
}

// Under returns ctx with the span of from: for work that outlives its caller.
func Under(ctx, from context.Context) context.Context {
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(from))
}

// Digest returns the attribute of what a step is about: a table, blob or manifest.
func Digest[D ~string](d D) attribute.KeyValue { return attribute.String("ballast.digest", string(d)) }

// Size returns the attribute of a size in bytes.
func Size(n int64) attribute.KeyValue { return attribute.Int64("ballast.size", n) }

// Received returns the attributes of where bytes came from.
func Received(registries, mirrors int64) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Int64("ballast.received.registries", registries), attribute.Int64("ballast.received.mirrors", mirrors),
	}
}

// Name returns the attribute of the name of a file or layer in its model.
func Name(name string) attribute.KeyValue { return attribute.String("ballast.name", name) }

// Ref returns the attribute of a reference, which must not contain a secret.
func Ref(name string) attribute.KeyValue { return attribute.String("ballast.ref", name) }
