package store

import (
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// Usage is the disk usage of a store, in bytes.
type Usage struct {
	Logical     int64 // files of all complete tables, with duplicates
	Unique      int64 // objects on disk
	Saved       int64 // additional size of Logical without sharing
	Reclaimable int64 // objects without a reference
	Partial     int64 // staged files, as allocated
	Objects     int64 // count
	Free        int64 // on the file system
	Capacity    int64 // of the file system
}

// Usage returns the disk use.
func (s *Store) Usage() (Usage, error) {
	r, err := s.objects.Usage(host{s})
	if err != nil {
		return Usage{}, err
	}
	u := Usage{
		Logical: r.Logical, Unique: r.Unique, Saved: max(0, r.Logical-r.Shared), Reclaimable: r.Reclaimable, Objects: r.Objects,
	}
	if u.Partial, err = s.area.Usage(); err != nil {
		return u, err
	}
	u.Free, u.Capacity, err = s.free()
	return u, err
}

// A Share is the size of the finished files and documents of a model, in bytes: those that no other known
// model needs, and the others. Its own bytes are what removing it, and a GC, give back.
type Share = meta.Share

// Shares returns the share of each image, by its manifest, and of each other model that is referenced or being
// downloaded, by its table. The cost is linear in the files of all models.
func (s *Store) Shares() map[digest.Digest]Share { return s.db.Shares(host{s}.Live()) }

// Share is Shares for one model. Its cost depends on the files of that model.
func (s *Store) Share(model digest.Digest) Share { return s.db.Share(model, host{s}.Live()) }

// Counts are counters since the store was opened.
type Counts struct {
	ReaderBytes   int64 // fetched for reads of incomplete files
	CopiedBytes   int64 // of chunks copied from another object
	CorruptChunks int64 // wrong chunks from a source
	FailedReads   int64 // of incomplete files
	ScrubbedBytes int64 // read again by Scrub
	Damaged       int64 // objects that were found damaged or missing
}

// Counts returns the counters since the store was opened.
func (s *Store) Counts() Counts {
	c := &s.files.Counts
	return Counts{
		ReaderBytes: c.Received.Load(), CopiedBytes: c.Copied.Load(), CorruptChunks: c.Corrupt.Load(), FailedReads: s.exposed.Failed.Load(),
		ScrubbedBytes: s.scrubbed.Load(), Damaged: s.objects.Lost(),
	}
}

// Memory returns the memory used for the records of objects, in bytes.
func (s *Store) Memory() int64 { return s.db.Memory() }
