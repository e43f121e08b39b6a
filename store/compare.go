package store

import (
	"context"
	"errors"
	"slices"
	"time"
)

// compareRetry is how long CompareFiles waits after an error of the disk.
const compareRetry = time.Minute

// CompareFiles compares, once, the names and sizes of all files below objects with the records, at which Open does not
// look, and hashes files without a record: right ones become objects. It may take hours. Missing files, and those of
// another size, are no longer objects; damaged is called with those that were found. The end of ctx is not an error.
func (s *Store) CompareFiles(ctx context.Context, damaged func(context.Context, []CheckResult)) error {
	for {
		err := s.compareFiles(ctx, damaged)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		s.log.Error("files cannot be compared with the records", "err", err)
		sleep(ctx, compareRetry)
	}
}

func (s *Store) compareFiles(ctx context.Context, damaged func(context.Context, []CheckResult)) error {
	found, err := s.objects.Compare(ctx)
	if found.Unrecorded > 0 {
		s.log.Warn("files without a record must be hashed before they are objects", "files", found.Unrecorded)
	}
	s.announce(s.objects.RecoverAll(ctx)) // a file may be right, and its record wrong
	s.completeRecovered()
	bad := slices.DeleteFunc(found.Bad, func(b CheckResult) bool { return s.objects.Has(b.Digest) })
	if len(bad) == 0 || ctx.Err() != nil {
		return err
	}
	missing, merr := s.addMissing("", bad)
	if merr == nil {
		damaged(ctx, missing[:len(bad)])
	}
	return errors.Join(err, merr)
}
