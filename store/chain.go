package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// chained returns a table, its blobs that a chain makes readable by windows, and the signed chains of these.
func (s *Store) chained(table digest.Digest) (t *filetable.Table, blobs []filetable.Blob, chains map[digest.Digest]meta.Chain, err error) {
	if t, err = s.Table(table); err != nil {
		return nil, nil, nil, err
	}
	if blobs = t.Windowless(); len(blobs) > 0 {
		chains, err = s.db.Chains(blobs)
	}
	return t, blobs, chains, err
}

// windowed returns a table with the windows of its blobs that have a signed chain.
func (s *Store) windowed(table digest.Digest) (*filetable.Table, error) {
	t, _, signed, err := s.chained(table)
	if err != nil {
		return nil, err
	}
	chains := map[digest.Digest]verify.Chain{}
	for blob, c := range signed {
		chains[blob] = c.States
	}
	return t.Windowed(chains), nil
}

// Chain returns the chain of states that was kept when a blob was downloaded (Options.Chains). It returns
// errdefs.ErrNotFound if there is none, or if the blob does not exist for sources with these names (OpenObject).
func (s *Store) Chain(blob digest.Digest, names []string) (verify.Chain, error) {
	if err := s.objects.Allow(blob, names); err != nil {
		return nil, err
	}
	kept, err := s.db.Chain(blob)
	if err == nil && kept.Signer != "" { // it may be wrong, if the blob came without it
		err = fmt.Errorf("chain of %s: %w", blob, errdefs.ErrNotFound)
	}
	return kept.States, err
}

// HashChain is Chain for a blob without a kept chain: its object is read and hashed. progress is called with the number
// of bytes so far. It returns a *verify.Error if the object is damaged.
func (s *Store) HashChain(ctx context.Context, b filetable.Blob, names []string, progress func(done int64)) (verify.Chain, error) {
	f, err := s.OpenObject(b.Digest, names)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return verify.ReadChain(ctx, f, b.Digest, b.Size, progress)
}

// Unchained returns the blobs of a table that PutChains would make readable by windows: those that sources with these
// names must still provide. What others have makes no difference.
func (s *Store) Unchained(table digest.Digest, names []string) ([]filetable.Blob, error) {
	_, blobs, chained, err := s.chained(table)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(blobs, func(b filetable.Blob) bool {
		_, ok := chained[b.Digest]
		return ok || s.objects.MayHave(b.Digest, names)
	}), nil
}

// A SignedChain is the chain of states of a blob, with the name of the key that signed it.
type SignedChain struct {
	Blob   filetable.Blob
	States verify.Chain
	Signer string
}

// PutChains records chains of blobs, by which their windows are verified until they are complete. What is already
// being fetched, or waited for, without them goes on as it began. A signer vouches for the windows; a chain that turns
// out to be wrong is dropped. It returns errdefs.ErrInvalidArgument, and records nothing, if a chain
// cannot be that of its blob or has no signer.
func (s *Store) PutChains(all ...SignedChain) error {
	chains := map[digest.Digest]meta.Chain{}
	for _, c := range all {
		if c.Signer == "" || !c.States.Valid(c.Blob.Size) {
			return fmt.Errorf("a chain of %d bytes by %q for blob %s of %d bytes: %w", len(c.States), c.Signer, c.Blob.Digest, c.Blob.Size, errdefs.ErrInvalidArgument)
		}
		chains[c.Blob.Digest] = meta.Chain{Signer: c.Signer, States: c.States}
	}
	return s.db.PutChains(chains)
}

// TrustChains drops all chains that keys other than those of signers have signed. What is not complete is read when it
// is. It is called before files are exposed.
func (s *Store) TrustChains(signers ...string) error {
	dropped, err := s.db.DropChains(func(_ digest.Digest, by string) bool { return !slices.Contains(signers, by) })
	if len(dropped) > 0 {
		s.log.Info("tables of hash states by keys that are not trusted any more are dropped", "blobs", len(dropped))
	}
	return err
}

// ChainSigners returns the names of the keys that signed the chains by which files of a table are read before they are
// complete.
func (s *Store) ChainSigners(table digest.Digest) ([]string, error) {
	_, _, chains, err := s.chained(table)
	var names []string
	for _, c := range chains {
		names = append(names, c.Signer)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
