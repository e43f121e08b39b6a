package store

import (
	"bytes"
	"context"
	"errors"
	"os"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// host has the methods with which the packages below call the store. They implement hydrate.Objects,
// chunkfile.Finder and object.Root, together with PutBytes and Room of Store.
type host struct{ *Store }

// Live implements object.Root.
func (h host) Live() (r meta.Roots) {
	r.Tables, r.Blobs = h.engine.Live()
	return r
}

// Has implements hydrate.Objects.
func (h host) Has(b filetable.Blob, from *transfer.Sources) (bool, error) {
	if b.Archive == filetable.ArchiveNone {
		return h.hasBlob(b, from)
	}
	contents, err := h.db.Contents(b.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	var names []string
	if from != nil {
		names = transfer.Names(from.Order())
	}
	for _, c := range contents {
		if c.Type == filetable.TypeReg && !h.objects.MayHave(c.Digest, names) {
			return false, nil
		}
	}
	return true, nil
}

// Assembled implements hydrate.Objects.
func (h host) Assembled(f filetable.File) (digest.Digest, error) { return hydrate.Assembled(h.db, f) }

// Publish implements hydrate.Objects.
func (h host) Publish(a meta.Arrival) error {
	if err := h.objects.Publish(a); err != nil {
		return err
	}
	for _, f := range a.Files {
		h.exposed.Arrived(f.Digest, f.Layout)
	}
	return nil
}

// DoubtChain implements hydrate.Objects. A source that lies, or a table with states of its own, says nothing about the
// chain, by which others read the blob: it is dropped only if the object contradicts it.
func (h host) DoubtChain(ctx context.Context, b filetable.Blob) {
	signed, err := h.db.Chains([]filetable.Blob{b})
	chain, ok := signed[b.Digest]
	if err == nil && ok {
		err = h.dropWrong(ctx, b, chain)
	}
	if err != nil && ctx.Err() == nil {
		h.log.Error("it is unknown whether the table of hash states of a blob is right", "digest", b.Digest, "err", err)
	}
}

// dropWrong drops the chain of a blob that is an object, unless it is right.
func (h host) dropWrong(ctx context.Context, b filetable.Blob, c meta.Chain) error {
	f, err := h.objects.Open(b.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	right, err := verify.ReadChain(ctx, f, b.Digest, b.Size, func(int64) {})
	if err != nil || bytes.Equal(right, c.States) {
		return err
	}
	_, err = h.db.DropChains(func(of digest.Digest, _ string) bool { return of == b.Digest })
	h.log.Error("the table of hash states of a blob is wrong, and is dropped", "digest", b.Digest, "key", c.Signer, "err", err)
	return nil
}

// Wrong implements hydrate.Objects and chunkfile.Finder.
func (h host) Wrong(f *chunkfile.File) error { return h.exposed.Wrong(f) }

// Began implements hydrate.Objects.
func (h host) Began(table digest.Digest, group string) {
	h.exposed.Notify(table, group, nil)
	// A garbage collection that started before must end first, so that what it left can be found.
	h.objects.Pause()()
}

// Ended implements hydrate.Objects. Readers wait on after a canceled hydration, whose caller starts another.
func (h host) Ended(table digest.Digest, t *filetable.Table, group string, err error) error {
	if err == nil {
		err = h.completeTable(table, t)
	}
	if err == nil && h.o.Completed != nil {
		h.o.Completed(table)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		h.exposed.Notify(table, group, err)
	}
	return err
}

// Reserve implements hydrate.Objects.
func (h host) Reserve(table digest.Digest, group string, need int64, left func() int64) (release func(), err error) {
	r := &reservation{reserved: reserved{table, group}, left: left}
	return func() { h.ledger.remove(r) }, h.reserve(need, r)
}

// reserveExposed implements expose.Options.Reserve.
func (h host) reserveExposed(table digest.Digest, group string, left func() int64) error {
	return h.reserve(left(), &reservation{reserved: reserved{table, group}, early: true, left: left})
}

// Order implements hydrate.Objects.
func (h host) Order(table digest.Digest, group string) []filetable.Range {
	o, err := h.exposed.Order(table, group)
	if err != nil {
		h.log.Warn("the order of a model cannot be read", "table", table, "err", err)
	}
	return o.Ranges
}

// Find implements chunkfile.Finder.
func (h host) Find(chunks []filetable.Chunk, buf []byte, from *transfer.Sources, right func(filetable.Chunk, []byte) error) []filetable.Location {
	found := make([]filetable.Location, len(chunks))
	names := transfer.Names(from.Order())
	places, err := h.db.Chunks(chunks)
	if err != nil {
		h.log.Warn("chunks are fetched that may be there", "err", err)
		return found
	}
	var (
		f    *os.File
		open digest.Digest
	)
	defer func() {
		if f != nil {
			f.Close() // opened for reading
		}
	}()
	for i, c := range chunks {
		at := places[i]
		if at.Object == "" {
			continue
		}
		if at.Object != open {
			if f != nil {
				f.Close()
			}
			f, open = nil, at.Object
			if h.objects.MayHave(open, names) {
				if f, err = h.objects.Open(open); err != nil {
					f = nil // collected or damaged
				}
			}
		}
		if f == nil {
			continue
		}
		p := buf[c.Offset-chunks[0].Offset:][:c.Size]
		if _, err := f.ReadAt(p, at.Off); err == nil && right(c, p) == nil {
			found[i] = at
		}
	}
	return found
}

// Open implements chunkfile.Finder.
func (h host) Open(d digest.Digest) (*os.File, error) { return h.objects.Open(d) }
