package store

import "sync/atomic"

// counts are what happened since the store was opened.
type counts struct {
	received atomic.Int64 // bytes from outside, for readers
	copied   atomic.Int64 // bytes of chunks that an object had already
	corrupt  atomic.Int64 // chunks that were wrong
	failed   atomic.Int64 // reads that failed
}

// Counts are what happened since the store was opened.
type Counts struct {
	ReaderBytes   int64 // fetched because somebody reads a file that is not complete
	CopiedBytes   int64 // of chunks that were copied from another object, not fetched
	CorruptChunks int64 // chunks that a source delivered wrong
	FailedReads   int64 // of files that are not complete
}

// Counts returns what happened since the store was opened.
func (s *Store) Counts() Counts {
	return Counts{
		ReaderBytes: s.counts.received.Load(), CopiedBytes: s.counts.copied.Load(),
		CorruptChunks: s.counts.corrupt.Load(), FailedReads: s.counts.failed.Load(),
	}
}
