package meta

import (
	"bytes"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Chain is the chain of states of a blob, with the name of the key that signed it. Without a name it was made here,
// while the blob was hashed.
type Chain struct {
	Signer string
	States verify.Chain
}

// MarshalBinary implements encoding.BinaryMarshaler: the signer, a line feed, the states.
func (c Chain) MarshalBinary() ([]byte, error) {
	if bytes.ContainsRune([]byte(c.Signer), '\n') {
		return nil, fmt.Errorf("signer %q: %w", c.Signer, errdefs.ErrInvalidArgument)
	}
	return append([]byte(c.Signer+"\n"), c.States...), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (c *Chain) UnmarshalBinary(p []byte) error {
	signer, states, ok := bytes.Cut(p, []byte("\n"))
	if !ok {
		return fmt.Errorf("no signer: %w", errdefs.ErrDataLoss)
	}
	c.Signer, c.States = string(signer), bytes.Clone(states)
	return nil
}

// Chain returns the chain of a blob, or errdefs.ErrNotFound.
func (db *DB) Chain(blob digest.Digest) (Chain, error) { return get[Chain](db, bucketChains, blob) }

// Chains returns the signed chains of blobs, as far as there are any.
func (db *DB) Chains(blobs []filetable.Blob) (map[digest.Digest]Chain, error) {
	out := map[digest.Digest]Chain{}
	return out, db.view(func(tx *txn) error {
		for _, b := range blobs {
			c, err := load[Chain](tx, bucketChains, b.Digest)
			switch {
			case err == nil && c.Signer != "" && c.States.Valid(b.Size):
				out[b.Digest] = c
			case err != nil && !errdefs.IsNotFound(err):
				return err
			}
		}
		return nil
	})
}

// PutChains records the chains of blobs, except of those that have a signed one. One is removed when there are neither
// the blob nor a table that needs it.
func (db *DB) PutChains(all map[digest.Digest]Chain) error {
	if len(all) == 0 {
		return nil
	}
	return db.update(func(tx *txn) error {
		for blob, c := range all {
			if err := putChain(tx, blob, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func putChain(tx *txn, blob digest.Digest, c Chain) error {
	if old, err := load[Chain](tx, bucketChains, blob); err == nil && old.Signer != "" {
		return nil
	}
	return put(tx, bucketChains, blob, c)
}

// DropChains removes the signed chains that drop names, and the ways in which files were read by them: from now on
// such a file is read only when it is complete.
func (db *DB) DropChains(drop func(blob digest.Digest, signer string) bool) (dropped []digest.Digest, err error) {
	return dropped, db.update(func(tx *txn) error {
		err := each(tx, bucketChains, func(blob digest.Digest, c Chain) error {
			if c.Signer != "" && drop(blob, c.Signer) {
				dropped = append(dropped, blob)
			}
			return nil
		})
		if err != nil || len(dropped) == 0 {
			return err
		}
		gone := map[digest.Digest]bool{}
		for _, blob := range dropped {
			gone[blob] = true
			if err := remove(tx, bucketChains, blob); err != nil {
				return err
			}
		}
		return replaceWays(tx, gone)
	})
}
