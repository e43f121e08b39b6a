package store

import (
	"context"
	"errors"
	"slices"
	"time"
)

// compareInterval is the interval between looks at the directories of objects, in which a few have changed.
const compareInterval = time.Minute

// CompareFiles compares the names and sizes of all files below objects with the records, and later again those in
// directories that change, until ctx ends, which is not an error. Open compares only the names in directories that have
// changed since. Missing files, and those of another size, are no longer objects; damaged is called with those that a
// comparison has found. Files without a record become objects when they have been hashed.
func (s *Store) CompareFiles(ctx context.Context, damaged func(context.Context, []CheckResult)) error {
	for all := true; ctx.Err() == nil; sleep(ctx, compareInterval) {
		_, err := s.compareFiles(ctx, all, damaged)
		if err == nil {
			all = false
		} else if ctx.Err() == nil {
			s.log.Error("files cannot be compared with the records", "err", err)
		}
	}
	return nil
}

// compareFiles compares once. It returns the number of directories that change too often to be recorded as compared.
func (s *Store) compareFiles(ctx context.Context, all bool, damaged func(context.Context, []CheckResult)) (changing int, err error) {
	found, err := s.objects.Compare(ctx, all)
	if found.Unrecorded+len(found.Bad) > 0 {
		s.announce(s.objects.RecoverAll(ctx)) // a file may be right, and its record wrong
		s.completeRecovered(ctx)
	}
	bad := slices.DeleteFunc(found.Bad, func(b CheckResult) bool { return s.objects.Has(b.Digest) })
	if len(bad) == 0 || ctx.Err() != nil {
		return found.Changing, err
	}
	missing, merr := s.addMissing(ctx, "", bad)
	if merr == nil {
		damaged(ctx, missing[:len(bad)])
	}
	return found.Changing, errors.Join(err, merr)
}
