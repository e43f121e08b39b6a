package meta

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxVerdicts limits the verdicts for one digest: policies change, and old ones rarely return.
const maxVerdicts = 8

// A Verdict records that signatures satisfy a policy.
type Verdict struct {
	Policy  digest.Digest `json:"policy"`          // identifies the policy, including its keys
	Signers []string      `json:"signers"`         // for messages
	Whole   bool          `json:"whole,omitempty"` // files must be compared with their digests before a byte is read
	Time    time.Time     `json:"time"`            // of the check
}

// PutVerdict durably records a verdict about the model of a table, or about a manifest, replacing one
// by the same policy. It is removed with the last record of the digest.
func (c Catalog) PutVerdict(about digest.Digest, v Verdict) error {
	v.Time = now()
	return c.db.update(func(tx *txn) error {
		all, err := load[[]Verdict](tx, bucketVerdicts, about)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		all = slices.DeleteFunc(all, func(old Verdict) bool { return old.Policy == v.Policy })
		all = append(all, v)
		return put(tx, bucketVerdicts, about, all[max(0, len(all)-maxVerdicts):])
	})
}

// Verdicts returns the verdicts about a digest, oldest first.
func (c Catalog) Verdicts(about digest.Digest) ([]Verdict, error) {
	all, err := get[[]Verdict](c.db, bucketVerdicts, about)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}
