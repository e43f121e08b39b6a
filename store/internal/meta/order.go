package meta

import (
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxOrders limits the orders of one table.
const maxOrders = 4

// An Order is the order in which a table is read from a group of sources (transfer.GroupKey). Others do not get it: it
// tells what the users of these sources read.
type Order struct {
	Sources string            `json:"sources"` // the group
	Ranges  []filetable.Range `json:"ranges"`
}

// PutOrder records an order of a table, instead of an earlier one from the same sources. It is removed with the table.
func (db *DB) PutOrder(table digest.Digest, o Order) error {
	return db.update(func(tx *txn) error {
		all, err := load[[]Order](tx, bucketOrders, table)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		all = slices.DeleteFunc(all, func(old Order) bool { return old.Sources == o.Sources })
		all = append(all, o)
		return put(tx, bucketOrders, table, all[max(0, len(all)-maxOrders):])
	})
}

// Orders returns the orders of a table, the latest last.
func (db *DB) Orders(table digest.Digest) ([]Order, error) {
	all, err := get[[]Order](db, bucketOrders, table)
	return all, ignoreNotFound(err)
}
