package store

import (
	"context"
	"slices"

	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
)

// Problems without damaged bytes.
const (
	ProblemMissing = object.Missing                             // a needed object is missing
	ProblemPartly  = "the contents of its archives are unknown" // of a table that was lost and recovered
)

// CheckResult describes a damaged or missing object.
type CheckResult = object.Bad

// Check reads every object of a table, or of all tables if table is empty, and compares digests. It
// also reports missing objects of tables with a reference. progress, if not nil, is called with
// bytes after each object.
//
// A damaged object is set aside, and Hydrate of its tables fetches it again. A file that was set
// aside but has the right digest now becomes an object again.
func (s *Store) Check(ctx context.Context, table digest.Digest, progress func(done, total int64)) ([]CheckResult, error) {
	bad, err := s.objects.Check(ctx, table, progress)
	if err != nil {
		return bad, err
	}
	return s.addMissing(table, bad)
}

// addMissing adds to damaged objects the tables that need them, and the results of Missing.
func (s *Store) addMissing(table digest.Digest, bad []CheckResult) ([]CheckResult, error) {
	missing, err := s.Missing(table)
	if err != nil {
		return bad, err
	}
	for _, m := range missing {
		i := slices.IndexFunc(bad, func(b CheckResult) bool { return b.Digest == m.Digest })
		if i < 0 {
			bad = append(bad, m)
		} else {
			bad[i].Tables = m.Tables
		}
	}
	return bad, nil
}

// Missing returns the missing and damaged objects of a table, or of all tables with a reference if
// table is empty, and the table itself if a reference to it is unresolved. It reads no content.
func (s *Store) Missing(table digest.Digest) ([]CheckResult, error) {
	var out []CheckResult
	tables, unresolved := []digest.Digest{table}, s.db.UnresolvedOf(table)
	if table == "" {
		tables, unresolved = s.db.Referred(), s.db.Unresolved()
	}
	missing := map[digest.Digest][]digest.Digest{} // tables, by object
	for _, t := range tables {                     // one at a time: they can need millions of objects
		for _, d := range s.db.Needed(t) {
			if !s.has(d) {
				missing[d] = append(missing[d], t)
			}
		}
	}
	for _, r := range unresolved {
		if slices.ContainsFunc(out, func(c CheckResult) bool { return c.Digest == r.Table }) {
			continue
		}
		c := CheckResult{Digest: r.Table, Problem: ProblemMissing, Tables: []digest.Digest{r.Table}}
		if s.has(r.Table) {
			c.Problem = ProblemPartly
		}
		out = append(out, c)
		delete(missing, r.Table)
	}
	for d, tables := range missing {
		out = append(out, CheckResult{Digest: d, Problem: ProblemMissing, Tables: tables})
	}
	slices.SortFunc(out, func(a, b CheckResult) int { return slices.Compare(a.Tables, b.Tables) })
	return out, nil
}
