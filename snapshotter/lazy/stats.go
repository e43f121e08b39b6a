package lazy

import "sync/atomic"

// Stats are counters of a process for a mount since Start.
type Stats struct {
	// Reads and ReadBytes count the reads that the daemon answered, without passthrough and the
	// page cache.
	Reads, ReadBytes int64
	// ObjectReads counts the reads served from a complete object.
	ObjectReads int64
	// ReadErrors counts reads answered with an error, Interrupted those whose reader went away.
	ReadErrors, Interrupted int64
	// Opens counts all opens, PassthroughOpens those with passthrough.
	Opens, PassthroughOpens int64
	// StateErrors counts opens and lookups that failed because the state cannot be written or is
	// full.
	StateErrors int64
	// Takeovers is 1 if the mount was taken over from an earlier process, otherwise 0.
	Takeovers int64
	// Nodes is the number of files that the kernel knows now.
	Nodes int64
	// Waiting is the number of reads that wait for the Source now.
	Waiting int64
}

type counters struct {
	reads, readBytes, objectReads, readErrors, interrupted atomic.Int64
	opens, passthroughOpens, stateErrors, takeovers        atomic.Int64
	waiting                                                atomic.Int64
}

func (c *counters) snapshot() Stats {
	return Stats{
		Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), ObjectReads: c.objectReads.Load(),
		ReadErrors: c.readErrors.Load(), Interrupted: c.interrupted.Load(),
		Opens: c.opens.Load(), PassthroughOpens: c.passthroughOpens.Load(),
		StateErrors: c.stateErrors.Load(), Takeovers: c.takeovers.Load(), Waiting: c.waiting.Load(),
	}
}
