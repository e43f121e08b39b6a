package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// metrics is what the daemon counts. No label has a digest, a path or a reference as value:
// their number has no bound.
type metrics struct {
	registry *prometheus.Registry
	pulls    *prometheus.HistogramVec
	ops      *prometheus.HistogramVec
	active   *prometheus.GaugeVec
	refusals *prometheus.CounterVec
	signed   *prometheus.CounterVec

	facadeUp      prometheus.Gauge
	facadeRefused *prometheus.CounterVec
}

// limits are the names of all that refuse something because it costs too much.
var limits = []string{registry.LimitConversions, registry.LimitIndex, store.LimitIdle, filetable.LimitFiles, filetable.LimitMembers, filetable.LimitDirs,
	carton.LimitLinked, lazy.LimitNodes, lazy.LimitHandles}

// Who asked for a model: the values of the label "by".
const (
	byPrefetch   = "prefetch"
	byImport     = "import"
	byHydrate    = "hydrate"    // awaited
	byBackground = "background" // nobody waits
	byContainerd = "containerd"
)

func newMetrics(s *store.Store, log *slog.Logger) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ballast_pull_duration_seconds", Help: "Time until a model was complete, by format, result and requester.",
			Buckets: prometheus.ExponentialBuckets(0.1, 4, 9), // 0.1 s to 109 min
		}, []string{"format", "result", "by"}),
		ops: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ballast_snapshot_op_seconds", Help: "Duration of requests of containerd, by operation and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 11), // 0.5 ms to 9 min
		}, []string{"op", "code"}),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ballast_active_pulls", Help: "Downloads that are running, by requester.",
		}, []string{"by"}),
		signed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ballast_signature_checks_total", Help: "Signature checks, by mode of the rule and result.",
		}, []string{"mode", "result"}),
		facadeUp: prometheus.NewGauge(prometheus.GaugeOpts{Name: "ballast_facade_up", Help: "1 if the facade answers."}),
		facadeRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ballast_facade_refused_total", Help: "Connections and requests that the facade refused, by reason.",
		}, []string{"reason"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ballast_refused_total", Help: "Requests that exceeded a limit, by limit.",
		}, []string{"limit"}),
	}
	for _, why := range []string{refusedPlain, refusedHandshake, refusedStale, refusedCrowd, refusedHost, refusedBrowser} {
		m.facadeRefused.WithLabelValues(why)
	}
	for _, r := range []signature.State{signature.Accepted, signature.Refused, signature.Pending, signature.Failed} {
		m.checked(signature.Enforce, r, 0)
	}
	for _, limit := range limits {
		m.refusals.WithLabelValues(limit)
	}
	for _, by := range []string{byPrefetch, byImport, byHydrate, byBackground, byContainerd} {
		m.active.WithLabelValues(by) // 0 is a value too
	}
	m.registry.MustRegister(
		m.pulls, m.ops, m.active, m.signed, m.refusals, m.facadeUp, m.facadeRefused, &storeCollector{store: s, log: log},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// refused counts what a limit has refused.
func (m *metrics) refused(limit string) { m.refusals.WithLabelValues(limit).Inc() }

// pulled counts a model that was awaited. The table of an image that others converted may say anything of its
// format: what we do not make is "other", so that the values of the label have a bound.
func (m *metrics) pulled(by, format string, dur time.Duration, err error) {
	f, ok := resolve.FormatOf(format)
	switch {
	case format == "":
		f = "unknown"
	case !ok:
		f = "other"
	}
	m.pulls.WithLabelValues(string(f), result(err), by).Observe(dur.Seconds())
}

// checked counts checks of signatures.
func (m *metrics) checked(mode signature.Mode, result signature.State, n int) {
	m.signed.WithLabelValues(string(mode), string(result)).Add(float64(n))
}

// result is "ok" or the category of an error.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return admin.Wrap(err).Code
}

// observe times requests of containerd.
func (m *metrics) observe(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	start := time.Now()
	res, err := handle(ctx, req)
	m.ops.WithLabelValues(path.Base(info.FullMethod), status.Code(err).String()).Observe(time.Since(start).Seconds())
	return res, err
}

// A storeCollector reports the disk use of the store.
type storeCollector struct {
	store *store.Store
	log   *slog.Logger
}

var (
	storeBytes   = prometheus.NewDesc("ballast_store_bytes", "Bytes of the store, by kind.", []string{"kind"}, nil)
	storeObjects = prometheus.NewDesc("ballast_store_objects", "Objects of the store.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- storeBytes
	ch <- storeObjects
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(ch chan<- prometheus.Metric) {
	u, err := c.store.Usage(context.Background())
	if err != nil {
		c.log.Warn("metrics lack the disk use", "err", err)
		return
	}
	for kind, n := range map[string]int64{
		"logical": u.Logical, "unique": u.Unique, "saved": u.Saved, "reclaimable": u.Reclaimable,
		"partial": u.Partial, "free": u.Free, "capacity": u.Capacity,
	} {
		ch <- prometheus.MustNewConstMetric(storeBytes, prometheus.GaugeValue, float64(n), kind)
	}
	ch <- prometheus.MustNewConstMetric(storeObjects, prometheus.GaugeValue, float64(u.Objects))
}
