package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Order returns the order in which a table is first read before it is complete, by users of sources of which one has a
// name. It returns errdefs.ErrNotFound if no read is known.
func (s *Store) Order(table digest.Digest, name string) (filetable.Order, error) {
	all, err := s.exposed.Orders(table)
	if err != nil {
		return filetable.Order{}, err
	}
	var best filetable.Order
	for group, o := range all {
		if slices.Contains(strings.Split(group, "\n"), name) && len(o.Ranges) > len(best.Ranges) {
			best = o
		}
	}
	if len(best.Ranges) == 0 {
		return best, fmt.Errorf("no read of the model is known: reads are recorded while it is not complete: %w", errdefs.ErrNotFound)
	}
	return best, nil
}

// HasOrder reports whether an order is known for a table from sources.
func (s *Store) HasOrder(table digest.Digest, sources []transfer.Source) bool {
	o, err := s.exposed.Order(table, transfer.GroupKey(sources))
	return err == nil && len(o.Ranges) > 0
}

// FirstRead returns a channel that is closed when a reader has got bytes of a table, or waits for a whole file of it.
// It is nil if all files of the table are complete.
func (s *Store) FirstRead(table digest.Digest, sources []transfer.Source) <-chan struct{} {
	return s.exposed.FirstRead(table, transfer.GroupKey(sources))
}

// PutOrder makes o the order in which a table is downloaded from sources. It returns errdefs.ErrInvalidArgument if
// the table has nothing of it.
func (s *Store) PutOrder(table digest.Digest, sources []transfer.Source, o filetable.Order) error {
	if err := o.Check(); err != nil {
		return err
	}
	t, err := s.Table(table)
	if err != nil {
		return err
	}
	files, err := hydrate.Resolve(s.db, t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return err
	}
	o = o.Within(files)
	if len(o.Ranges) == 0 {
		return fmt.Errorf("the order is not of this model: %w", errdefs.ErrInvalidArgument)
	}
	return s.exposed.PutOrder(table, transfer.GroupKey(sources), o)
}
