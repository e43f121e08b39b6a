package meta

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxVerdicts is how many verdicts are kept about one thing: policies change, and old ones do not come
// back often.
const maxVerdicts = 8

// A Verdict says that something was found to be signed as a policy wants it.
type Verdict struct {
	Policy  digest.Digest `json:"policy"`  // names all that it depends on, keys too
	Signers []string      `json:"signers"` // who signed, for people
	Time    time.Time     `json:"time"`    // when it was looked at
}

// PutVerdict records a verdict about what has a digest, in the place of one by the same policy.
func (db *DB) PutVerdict(about digest.Digest, v Verdict) error {
	v.Time = now()
	return db.update(func(tx *txn) error {
		all, err := load[[]Verdict](tx, bucketVerdicts, about)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		all = slices.DeleteFunc(all, func(old Verdict) bool { return old.Policy == v.Policy })
		all = append(all, v)
		return put(tx, bucketVerdicts, about, all[max(0, len(all)-maxVerdicts):])
	})
}

// Verdicts returns the verdicts about what has a digest, oldest first.
func (db *DB) Verdicts(about digest.Digest) ([]Verdict, error) {
	all, err := get[[]Verdict](db, bucketVerdicts, about)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}
