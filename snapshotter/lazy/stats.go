package lazy

import "sync/atomic"

// Stats counts what a process did for a mount since Start.
type Stats struct {
	// Reads and ReadBytes are what the kernel asked for and got. Reads by passthrough and
	// from the page cache are not seen.
	Reads, ReadBytes int64
	// ObjectReads are those of the reads that were made from a complete object.
	ObjectReads int64
	// ReadErrors are reads that were answered with an error, Interrupted those whose
	// reader went away.
	ReadErrors, Interrupted int64
	// Opens counts all, PassthroughOpens those that need the daemon no longer.
	Opens, PassthroughOpens int64
	// StateErrors are openings and lookups that failed because the state could not be
	// written or is full.
	StateErrors int64
	// Takeovers is 1 if the mount was taken over from an earlier process, otherwise 0.
	Takeovers int64
	// Nodes is how many files the kernel knows now.
	Nodes int64
	// Waiting is how many reads wait for the Source now.
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
