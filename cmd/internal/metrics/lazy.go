package metrics

import (
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store"
	"github.com/prometheus/client_golang/prometheus"
)

// WatchLazy adds the metrics of reads of incomplete files, which the store and the lazy mount
// count. mount returns nil while there is no lazy mount; unverified is whether lazy.verify is
// "after".
func (m *Metrics) WatchLazy(mount func() *lazy.Mount, unverified bool) {
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
	gauge("ballast_lazy_unverified", "1 if lazy.verify = \"after\" lets unverified bytes be read.", func() float64 { return number(unverified) })
}

// number returns 1 for true and 0 for false.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
