package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/registry"
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

// Metrics are the metrics of a daemon. Create them with New.
type Metrics struct {
	*prometheus.Registry

	store   *store.Store
	pulls   *prometheus.HistogramVec
	ops     *prometheus.HistogramVec
	active  *prometheus.GaugeVec
	refused *prometheus.CounterVec
	signed  *prometheus.CounterVec

	facadeUp      prometheus.Gauge
	facadeRefused *prometheus.CounterVec
}

// limits are the names of all limits on the cost of a request.
var limits = append(formats.All().Limits(), registry.LimitConversions, registry.LimitIndex, store.LimitIdle, filetable.LimitFiles, filetable.LimitMembers, filetable.LimitDirs,
	lazy.LimitNodes, lazy.LimitHandles)

// A Refusal is why the facade refuses a connection or a request.
type Refusal string

// The refusals.
const (
	PlainHTTP Refusal = "plain_http"
	Handshake Refusal = "handshake" // no certificate, or a wrong one
	StaleKey  Refusal = "stale_key" // signed by a CA that was replaced
	TooMany   Refusal = "too_many"
	Host      Refusal = "host"
	Browser   Refusal = "browser"
)

// New returns the metrics of a daemon of version v with the store s; log is for errors of the store.
func New(s *store.Store, v wire.Version, log *slog.Logger) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(), store: s,
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
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ballast_refused_total", Help: "Requests that exceeded a limit, by limit.",
		}, []string{"limit"}),
	}
	for _, why := range []Refusal{PlainHTTP, Handshake, StaleKey, TooMany, Host, Browser} {
		m.facadeRefused.WithLabelValues(string(why))
	}
	for _, r := range []signature.State{signature.Accepted, signature.Refused, signature.Pending, signature.Failed} {
		m.signed.WithLabelValues(string(signature.Enforce), string(r))
	}
	for _, limit := range limits {
		m.refused.WithLabelValues(limit)
	}
	for _, by := range []wire.Kind{wire.KindPrefetch, wire.KindImport, wire.KindBackground, wire.KindContainerd} {
		m.active.WithLabelValues(string(by)) // creates the series with the value 0
	}
	m.MustRegister(
		build(v), m.pulls, m.ops, m.active, m.signed, m.refused, m.facadeUp, m.facadeRefused, &storeCollector{store: s, log: log},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// build returns the metric that has the version of the daemon in its labels.
func build(v wire.Version) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ballast_build_info", Help: "1, with the version, commit and date of ballastd.",
		ConstLabels: prometheus.Labels{"version": v.Version, "revision": v.Revision, "date": v.Date, "goversion": v.Go},
	})
	g.Set(1)
	return g
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m, promhttp.HandlerOpts{})
}

// Refused counts a request that exceeded a limit.
func (m *Metrics) Refused(limit string) { m.refused.WithLabelValues(limit).Inc() }

// FacadeRefused counts a connection or a request that the facade refused.
func (m *Metrics) FacadeRefused(why Refusal) { m.facadeRefused.WithLabelValues(string(why)).Inc() }

// FacadeUp records whether the facade answers.
func (m *Metrics) FacadeUp(up bool) { m.facadeUp.Set(number(up)) }

// Pull counts the start of a download. The caller calls end when it has ended, with the format
// named in the table of the model, or "". The table of an image that others converted may name any
// format: formats that ballast does not make count as "other", so that the number of label values
// is bounded.
func (m *Metrics) Pull(by wire.Kind) (end func(format string, err error)) {
	start, active := time.Now(), m.active.WithLabelValues(string(by))
	active.Inc()
	return func(format string, err error) {
		active.Dec()
		name := "other"
		if f := formats.All().Get(format); f.Name != "" {
			name = string(f.Name)
		} else if format == "" {
			name = "unknown"
		}
		m.pulls.WithLabelValues(name, result(err), string(by)).Observe(time.Since(start).Seconds())
	}
}

// Checked counts a signature check.
func (m *Metrics) Checked(mode signature.Mode, result signature.State) {
	m.signed.WithLabelValues(string(mode), string(result)).Inc()
}

// result returns "ok" or the category of an error.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return wire.Wrap(err).Code
}

// Observe measures the duration of containerd's requests; it is a grpc.UnaryServerInterceptor.
func (m *Metrics) Observe(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	start := time.Now()
	res, err := handle(ctx, req)
	m.ops.WithLabelValues(path.Base(info.FullMethod), status.Code(err).String()).Observe(time.Since(start).Seconds())
	return res, err
}

// A storeCollector collects the disk usage of the store.
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
	u, err := c.store.Usage()
	if err != nil {
		c.log.Warn("the metrics of the disk use are missing", "err", err)
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

// WatchLazy adds the metrics of reads of incomplete files and of damage, which the store and the lazy mount
// count. mount returns nil while there is no lazy mount.
func (m *Metrics) WatchLazy(mount func() *lazy.Mount) {
	value := func(of func(store.Counts, lazy.Stats) int64) func() float64 {
		return func() float64 {
			var stats lazy.Stats
			if l := mount(); l != nil {
				stats = l.Stats()
			}
			return float64(of(m.store.Counts(), stats))
		}
	}
	counter := func(name, help string, of func(store.Counts, lazy.Stats) int64) {
		m.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value(of)))
	}
	gauge := func(name, help string, f func() float64) {
		m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	counter("ballast_lazy_fetched_bytes_total", "Bytes downloaded because a container read a file that is not complete.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.ReaderBytes })
	counter("ballast_chunks_copied_bytes_total", "Bytes of chunks that were copied from another object and not downloaded.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.CopiedBytes })
	counter("ballast_chunks_corrupt_total", "Chunks whose digest did not match.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.CorruptChunks })
	counter("ballast_scrub_read_bytes_total", "Bytes of objects that were read again in the background.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.ScrubbedBytes })
	counter("ballast_damaged_objects_total", "Objects that were found damaged or missing.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.Damaged })
	counter("ballast_lazy_failed_reads_total", "Reads of incomplete files that returned an error.",
		func(c store.Counts, s lazy.Stats) int64 { return max(c.FailedReads, s.ReadErrors) })
	counter("ballast_lazy_reads_total", "Reads through the lazy mount.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.Reads })
	counter("ballast_lazy_read_bytes_total", "Bytes requested by reads through the lazy mount.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.ReadBytes })
	counter("ballast_lazy_passthrough_opens_total", "Files opened through the lazy mount so that the kernel reads them without the daemon.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.PassthroughOpens })
	counter("ballast_lazy_takeovers_total", "1 if the lazy mount was taken over from an earlier daemon.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.Takeovers })
	gauge("ballast_lazy_waiting_reads", "Reads that wait for bytes.",
		value(func(_ store.Counts, s lazy.Stats) int64 { return s.Waiting }))
	gauge("ballast_lazy_paused", "1 if background downloads are paused.", func() float64 { return number(m.store.Paused()) })
}

// WatchSources adds the metrics of registries and mirrors, as the functions return them.
func (m *Metrics) WatchSources(direct func() int64, mirrors func() []wire.Mirror) {
	m.MustRegister(mirrorCollector(mirrors), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ballast_registry_bytes_total", Help: "Bytes of blobs received from registries themselves, and not from mirrors.",
	}, func() float64 { return float64(direct()) }))
}

// A mirrorCollector collects the metrics of mirrors.
type mirrorCollector func() []wire.Mirror

var (
	mirrorLabels   = []string{"mirror"}
	mirrorBytes    = prometheus.NewDesc("ballast_mirror_bytes_total", "Bytes received from a mirror.", mirrorLabels, nil)
	mirrorFailures = prometheus.NewDesc("ballast_mirror_failures_total", "Ranges that a mirror was asked for and that came from elsewhere, by reason.", []string{"mirror", "reason"}, nil)
	mirrorWrong    = prometheus.NewDesc("ballast_mirror_wrong_total", "Files and chunks of which a mirror sent wrong bytes and the registry the right ones.", mirrorLabels, nil)
)

// Describe implements prometheus.Collector.
func (mirrorCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- mirrorBytes
	ch <- mirrorFailures
	ch <- mirrorWrong
}

// Collect implements prometheus.Collector.
func (c mirrorCollector) Collect(ch chan<- prometheus.Metric) {
	for _, mirror := range c() {
		for desc, n := range map[*prometheus.Desc]int64{mirrorBytes: mirror.Bytes, mirrorWrong: mirror.Wrong} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), mirror.Address)
		}
		for reason, n := range mirror.Left {
			ch <- prometheus.MustNewConstMetric(mirrorFailures, prometheus.CounterValue, float64(n), mirror.Address, reason)
		}
	}
}

// number returns 1 for true and 0 for false.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
