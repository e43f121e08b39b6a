package store

import (
	"context"
)

// Usage is the disk use of a store, in bytes.
type Usage struct {
	Logical     int64 `json:"logical"`     // files of all complete tables, each as often as it occurs
	Unique      int64 `json:"unique"`      // objects on disk
	Saved       int64 `json:"saved"`       // what Logical would take more without sharing
	Reclaimable int64 `json:"reclaimable"` // objects without a reference
	Partial     int64 `json:"partial"`     // unfinished fetches, as allocated
	Objects     int64 `json:"objects"`     // count
	Free        int64 `json:"free"`        // on the file system
	Capacity    int64 `json:"capacity"`    // of the file system
}

// Usage returns the disk use.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	r, err := s.objects.Usage(collector{s})
	if err != nil {
		return Usage{}, err
	}
	u := Usage{
		Logical: r.Logical, Unique: r.Unique, Saved: max(0, r.Logical-r.Shared), Reclaimable: r.Reclaimable, Objects: r.Objects,
	}
	if u.Partial, err = s.area.Allocated(""); err != nil {
		return u, err
	}
	u.Free, u.Capacity, err = s.free()
	return u, err
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
	c := &s.files.Counts
	return Counts{ReaderBytes: c.Received.Load(), CopiedBytes: c.Copied.Load(), CorruptChunks: c.Corrupt.Load(), FailedReads: s.failed.Load()}
}

// Memory returns what the store keeps in memory for the objects that there are, in bytes.
func (s *Store) Memory() int64 { return s.db.Memory() }
