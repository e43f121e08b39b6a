package config

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/containerd/errdefs"
)

// Getenv returns an environment variable, for formats: each one reads the variables of its own
// tools.
func Getenv(key string) string { return os.Getenv(key) }

// Variables returns environment variables by name. It returns errdefs.ErrInvalidArgument for one that is not set.
func Variables(names []string) (map[string]string, error) {
	all := map[string]string{}
	for _, name := range names {
		value, ok := os.LookupEnv(name)
		if name != "" && !ok {
			return nil, fmt.Errorf("--env %s: this variable is not set here: %w", name, errdefs.ErrInvalidArgument)
		}
		if name != "" {
			all[name] = value
		}
	}
	return all, nil
}

// Traces returns the protocol in which traces are sent, "http/protobuf" or "grpc", by the variables of OpenTelemetry;
// "" without a collector. It returns errdefs.ErrInvalidArgument for what is not supported.
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/
func Traces() (protocol string, err error) {
	exporter := cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
	off := strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || exporter == "none"
	if off || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return "", nil
	}
	if exporter != "otlp" {
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q; set otlp or none: %w", exporter, errdefs.ErrInvalidArgument)
	}
	protocol = cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "http/protobuf" && protocol != "grpc" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; set http/protobuf or grpc: %w", protocol, errdefs.ErrInvalidArgument)
	}
	return protocol, nil
}

// HostsLike returns the hosts (hostname.Normal) that behave like those of a format.
func (c *Config) HostsLike(format string) (hosts []string) {
	if format == "ollama" {
		for _, h := range c.Upstream.OllamaHosts {
			hosts = append(hosts, hostname.Normal(h))
		}
	}
	return hosts
}

// Archives returns, by host of references, the names of the archives at URLs that they refer to.
func (c *Config) Archives() map[string]string {
	m := map[string]string{}
	for _, a := range c.Carton {
		m[hostname.Normal(a.Registry)] = "carton+" + a.URL
	}
	return m
}

// A ServiceManager has the settings of the service manager in the environment.
// https://www.freedesktop.org/software/systemd/man/257/sd_listen_fds.html
type ServiceManager struct {
	// NotifySocket is the socket on which the manager receives the state of the service.
	NotifySocket string

	// ListenPID, ListenFDs and ListenNames describe the passed files.
	ListenPID, ListenFDs, ListenNames string
}

// Manager returns the service manager of the environment.
func Manager() ServiceManager {
	return ServiceManager{
		NotifySocket: os.Getenv("NOTIFY_SOCKET"),
		ListenPID:    os.Getenv("LISTEN_PID"), ListenFDs: os.Getenv("LISTEN_FDS"), ListenNames: os.Getenv("LISTEN_FDNAMES"),
	}
}
