package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// A Verdict records that the signatures of a model satisfy a policy.
type Verdict = meta.Verdict

// PutVerdict durably records a verdict about the model of a table, or about a manifest, replacing
// one by the same policy. It is removed with the last record of the digest.
func (s *Store) PutVerdict(ctx context.Context, about digest.Digest, v Verdict) error {
	return s.db.PutVerdict(about, v)
}

// Verdicts returns the verdicts about a table or a manifest, oldest first.
func (s *Store) Verdicts(ctx context.Context, about digest.Digest) ([]Verdict, error) {
	return s.db.Verdicts(about)
}
