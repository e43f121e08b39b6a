package config

import (
	"strings"
	"testing"
)

func TestTraces(t *testing.T) {
	const endpoint, traces = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces"
	for _, tt := range []struct {
		env, want, wrong string
	}{
		{"", "", ""},
		{"OTEL_TRACES_EXPORTER=console", "", ""},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "", ""},
		{endpoint, "http/protobuf", ""},
		{traces, "http/protobuf", ""},
		{endpoint + " OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "grpc", ""},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "http/protobuf", ""},
		{endpoint + " OTEL_SDK_DISABLED=false", "http/protobuf", ""},
		{endpoint + " OTEL_SDK_DISABLED=True", "", ""},
		{endpoint + " OTEL_TRACES_EXPORTER=none", "", ""},
		{endpoint + " OTEL_TRACES_EXPORTER=zipkin", "", `"zipkin"; set otlp or none`},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "", `"http/json"; set http/protobuf or grpc`},
	} {
		t.Run(tt.env, func(t *testing.T) {
			for pair := range strings.FieldsSeq(tt.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			got, err := Traces()
			if got != tt.want || (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("got %q, %v; want %q, %q", got, err, tt.want, tt.wrong)
			}
		})
	}
}
