package daemon

import (
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store"
	"github.com/prometheus/client_golang/prometheus"
)

// lazyCollector collects what is known of files that are read before they are complete.
type lazyCollector struct {
	store      *store.Store
	mount      func() *lazy.Mount // nil: there is none
	unverified bool
}

// A lazyMetric is a number that is kept elsewhere.
type lazyMetric struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(store.Counts, lazy.Stats) int64
}

func lazyCounter(name, help string, value func(store.Counts, lazy.Stats) int64) lazyMetric {
	return lazyMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, value}
}

var lazyMetrics = []lazyMetric{
	lazyCounter("ballast_lazy_fetched_bytes_total", "Bytes downloaded because a container read a file that is not complete.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.ReaderBytes }),
	lazyCounter("ballast_chunks_copied_bytes_total", "Bytes of chunks that were copied from another object and not downloaded.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.CopiedBytes }),
	lazyCounter("ballast_chunks_corrupt_total", "Chunks whose digest did not match.",
		func(c store.Counts, _ lazy.Stats) int64 { return c.CorruptChunks }),
	lazyCounter("ballast_lazy_failed_reads_total", "Reads of incomplete files that returned an error.",
		func(c store.Counts, s lazy.Stats) int64 { return max(c.FailedReads, s.ReadErrors) }),
	lazyCounter("ballast_lazy_reads_total", "Reads through the lazy mount.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.Reads }),
	lazyCounter("ballast_lazy_read_bytes_total", "Bytes requested by reads through the lazy mount.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.ReadBytes }),
	lazyCounter("ballast_lazy_passthrough_opens_total", "Files opened through the lazy mount so that the kernel reads them without the daemon.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.PassthroughOpens }),
	lazyCounter("ballast_lazy_takeovers_total", "1 if the lazy mount was taken over from an earlier daemon.",
		func(_ store.Counts, s lazy.Stats) int64 { return s.Takeovers }),
	{prometheus.NewDesc("ballast_lazy_waiting_reads", "Reads that wait for bytes.", nil, nil), prometheus.GaugeValue,
		func(_ store.Counts, s lazy.Stats) int64 { return s.Waiting }},
}

var lazyPaused = prometheus.NewDesc("ballast_lazy_paused", "1 if background downloads are paused.", nil, nil)

var lazyUnverified = prometheus.NewDesc("ballast_lazy_unverified", "1 if lazy.verify = \"after\" lets unverified bytes be read.", nil, nil)

func (c *lazyCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range lazyMetrics {
		ch <- m.desc
	}
	ch <- lazyPaused
	ch <- lazyUnverified
}

func (c *lazyCollector) Collect(ch chan<- prometheus.Metric) {
	counts, stats := c.store.Counts(), lazy.Stats{}
	if m := c.mount(); m != nil {
		stats = m.Stats()
	}
	for _, m := range lazyMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.typ, float64(m.value(counts, stats)))
	}
	ch <- prometheus.MustNewConstMetric(lazyPaused, prometheus.GaugeValue, number(c.store.Paused()))
	ch <- prometheus.MustNewConstMetric(lazyUnverified, prometheus.GaugeValue, number(c.unverified))
}

// number returns 1 for true.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
