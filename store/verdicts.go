package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// A Verdict says that a model was found to be signed as a policy wants it.
type Verdict = meta.Verdict

// PutVerdict records a verdict about the model of a table, or about what a manifest names, in the place of
// one by the same policy. It is durable on return, so that who starts without a network knows it, and
// goes when nothing knows the digest any more.
func (s *Store) PutVerdict(ctx context.Context, about digest.Digest, v Verdict) error {
	return s.db.PutVerdict(about, v)
}

// Verdicts returns the verdicts about a table or a manifest, oldest first.
func (s *Store) Verdicts(ctx context.Context, about digest.Digest) ([]Verdict, error) {
	return s.db.Verdicts(about)
}
