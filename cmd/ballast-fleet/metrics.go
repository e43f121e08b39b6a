package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// serveMetrics adds a server of metrics to a manager, at an address; "0": none. It has no others: those of
// controller-runtime are hundreds for each node.
func serveMetrics(mgr manager.Manager, address string, metrics prometheus.Collector) error {
	if address == "0" {
		return nil
	}
	h, err := metricsHandler(metrics)
	if err != nil {
		return err
	}
	return serve(mgr, "metrics", address, func(bool) http.Handler { return h })
}

// serve adds a server to a manager, at the address of the flag with its name. handler returns what it serves; local
// says that only this machine reaches it. While another process has the port, it is tried again.
func serve(mgr manager.Manager, name, address string, handler func(local bool) http.Handler) error {
	return mgr.Add(runnable(func(ctx context.Context) error {
		for logged := false; ; logged = true {
			l, err := net.Listen("tcp", address)
			switch {
			case err == nil:
				local := l.Addr().(*net.TCPAddr).IP.IsLoopback()
				return (&manager.Server{Name: name, Listener: l, Server: &http.Server{
					Handler: handler(local), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
				}}).Start(ctx)
			case !errors.Is(err, syscall.EADDRINUSE):
				return fmt.Errorf("--%s: %w", name, err)
			case !logged:
				mgr.GetLogger().Error(err, "not served; trying again", "name", name)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	}))
}

// A runnable is what a manager starts on each replica.
type runnable func(context.Context) error

// Start implements manager.Runnable.
func (r runnable) Start(ctx context.Context) error { return r(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (runnable) NeedLeaderElection() bool { return false }

// metricsHandler serves metrics at /metrics.
func metricsHandler(metrics prometheus.Collector) (http.Handler, error) {
	r := prometheus.NewRegistry()
	if err := r.Register(metrics); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux, nil
}
