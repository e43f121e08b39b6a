package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// reserving calls before in each Reserve: a hydration then knows what is missing, and has fetched nothing.
type reserving struct {
	host
	before func(table digest.Digest)
}

func (r reserving) Reserve(table digest.Digest, group string, need int64, left func() int64) (func(), error) {
	r.before(table)
	return r.host.Reserve(table, group, need, left)
}

// BeforeFetching makes hydrations call before when they know what is missing.
func (s *Store) BeforeFetching(before func(table digest.Digest)) {
	s.engine.Objects = reserving{host{s}, before}
}

// Use keeps the files of a table that are fetched by chunks in use, as readers do, until release.
func (s *Store) Use(ctx context.Context, table digest.Digest, sources []transfer.Source) (release func(), err error) {
	t, err := s.Table(table)
	if err != nil {
		return nil, err
	}
	release = func() {}
	for _, target := range hydrate.Plan(t, transfer.GroupKey(sources)) {
		for _, c := range target.Files {
			f, before := s.files.Acquire(c.File.Digest, c.File.Size, c.File.Path, c.Layout), release
			release = func() { s.files.Release(f); before() }
		}
	}
	return release, nil
}
