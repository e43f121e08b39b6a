package hydrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// An assembly is a file made of parts.
type assembly struct {
	file   filetable.File
	recipe digest.Digest
	dir    string             // its name in staging.Area
	staged string             // below staging.Top
	copies map[int64]partCopy // by offset in the assembled file
	copied bool               // other assemblies copy parts of it
	digest digest.Digest      // set by complete
}

// A partCopy is a part that is staged elsewhere: a range of a blob can be in several files, but is
// fetched once.
type partCopy struct {
	from string // staged file
	at   int64  // offset in from
	size int64
}

// RecipeOf identifies the content of a file with parts: equal recipes make equal files.
func RecipeOf(src *filetable.Source) digest.Digest {
	p, err := json.Marshal(src)
	if err != nil {
		panic("store: internal error: source: " + err.Error())
	}
	return digest.FromBytes(p)
}

// newAssembly returns the assembly of a file. Until all parts are verified, its directory contains bytes
// of one group of sources only.
func newAssembly(f filetable.File, group string) *assembly {
	a := &assembly{file: f, recipe: RecipeOf(f.Source)}
	a.dir = staging.BlobDir(a.recipe, "assembly", group)
	a.staged = a.dir + "/data"
	return a
}

// ownAssemblies returns the files of a table to assemble, for exclusive use, as assemblies does.
func (e *Engine) ownAssemblies(ctx context.Context, h *hydration, t *filetable.Table) ([]*assembly, map[digest.Digest][]staging.Piece, error) {
	for {
		all, places, err := e.assemblies(ctx, t, h.group, &h.from)
		again := false
		for _, a := range all { // in the order of their directories, which prevents deadlocks
			waited, err := e.exclusive(ctx, h, a.dir)
			if err != nil {
				return all, nil, err
			}
			again = again || waited
		}
		if !again {
			return all, places, err
		}
		e.release(h, all...) // some have been assembled meanwhile
	}
}

// assemblies returns the files of a table to assemble for these sources, and where their fragments
// are staged.
func (e *Engine) assemblies(ctx context.Context, t *filetable.Table, group string, from *transfer.Sources) ([]*assembly, map[digest.Digest][]staging.Piece, error) {
	var all []*assembly
	parts := map[digest.Digest][]part{}
	seen := map[digest.Digest]bool{}
	for _, f := range t.Files {
		if f.Source == nil || len(f.Source.Parts) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		a := newAssembly(f, group)
		if seen[a.recipe] {
			continue
		}
		seen[a.recipe] = true
		if d, err := e.Objects.Assembled(f); err != nil {
			return nil, nil, err
		} else if d != "" {
			ok, err := e.Objects.Has(filetable.Blob{Digest: d, Size: f.Size}, from)
			if err != nil {
				return nil, nil, err
			}
			if ok {
				continue
			}
		}
		all = append(all, a)
		var at int64
		for _, src := range f.Source.Parts {
			if src.Blob != "" {
				parts[src.Blob] = append(parts[src.Blob], part{a, src.Offset, src.Size, at})
			}
			at += src.Size + int64(len(src.Inline))
		}
	}
	places := map[digest.Digest][]staging.Piece{}
	for _, b := range t.Blobs {
		if len(parts[b.Digest]) == 0 {
			continue
		}
		pieces, err := place(parts[b.Digest])
		if err != nil {
			return nil, nil, fmt.Errorf("blob %s: %w", b.Digest, err)
		}
		places[b.Digest] = staging.FillGaps(pieces, b.Size)
	}
	slices.SortFunc(all, func(a, b *assembly) int { return cmp.Compare(a.dir, b.dir) })
	return all, places, nil
}

// A part is a range of a blob at an offset of an assembled file.
type part struct {
	in            *assembly
	off, size, at int64
}

// place returns where the parts of a blob are staged: each at its offset in the first file that has it, from
// which the others copy it.
func place(parts []part) (pieces []staging.Piece, err error) {
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	var last part
	for _, p := range parts {
		switch {
		case len(pieces) == 0 || p.off >= last.off+last.size:
			pieces = append(pieces, staging.Piece{Off: p.off, Size: p.size, File: p.in.staged, At: p.at})
			last = p
		case p.off == last.off && p.size == last.size:
			if p.in.copies == nil {
				p.in.copies = map[int64]partCopy{}
			}
			p.in.copies[p.at] = partCopy{from: last.in.staged, at: last.at, size: p.size}
			last.in.copied = last.in.copied || last.in != p.in
		default:
			return nil, fmt.Errorf("file %q: range %d+%d overlaps another part: %w", p.in.file.Path, p.off, p.size, errdefs.ErrNotImplemented)
		}
	}
	return pieces, nil
}

// begin creates the staged file with its inline parts.
func (a *assembly) begin(e *Engine) error {
	if err := e.Area.Make(a.dir); err != nil {
		return err
	}
	f, err := e.Root.OpenFile(filepath.Join(staging.Top, a.staged), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	var at int64
	for _, part := range a.file.Source.Parts {
		if part.Blob != "" {
			at += part.Size
			continue
		}
		if _, err := f.WriteAt(part.Inline, at); err != nil {
			return errors.Join(err, f.Close())
		}
		at += int64(len(part.Inline))
	}
	return f.Close()
}

// complete hashes the file, each part after ready returns, and makes the file durable. ready waits
// until the blob of a part is verified, and returns an error if it will not be. If a sync fails, all staged bytes
// are dropped.
func (a *assembly) complete(ctx context.Context, e *Engine, ready func(context.Context, digest.Digest) error) error {
	f, err := e.Root.OpenFile(filepath.Join(staging.Top, a.staged), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := verify.NewHash()
	buf := make([]byte, 1<<20)
	var at int64
	for _, part := range a.file.Source.Parts {
		size := int64(len(part.Inline))
		if part.Blob != "" {
			size = part.Size
			if err := ready(ctx, part.Blob); err != nil {
				return err
			}
			if err := a.copy(e, f, at, buf); err != nil {
				return err
			}
		}
		if _, err := io.CopyBuffer(hash, io.NewSectionReader(f, at, size), buf); err != nil {
			return err
		}
		at += size
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != a.file.Size {
		return fmt.Errorf("file %q was assembled with %d bytes, not %d: %w", a.file.Path, info.Size(), a.file.Size, errdefs.ErrDataLoss)
	}
	a.digest = hash.Digest()
	if want := a.file.Digest; want != "" {
		if err := verify.Compare(want, a.digest, a.file.Size, at); err != nil {
			return fmt.Errorf("file %q does not match its table; pull the model again: %w", a.file.Path, err)
		}
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, e.Area.Remove(a.dir)) // what is read from it may not be on the disk
	}
	return nil
}

// publish makes the file an object of sources of a group.
func (a *assembly) publish(ctx context.Context, e *Engine, from *transfer.Sources, group string) (err error) {
	_, end := span.Start(ctx, span.Publish, span.Digest(a.digest), span.Size(a.file.Size))
	defer func() { end(err) }()
	file := meta.File{Staged: filepath.Join(staging.Top, a.staged), Digest: a.digest, Size: a.file.Size, Private: privateTo(from, group)}
	assembled := map[digest.Digest]digest.Digest{a.recipe: a.digest}
	if err := e.Objects.Publish(meta.Arrival{Files: []meta.File{file}, Assembled: assembled}); err != nil {
		return err
	}
	return e.Area.Remove(a.dir)
}

// copy copies the part at offset to from where it is staged, if that is elsewhere.
func (a *assembly) copy(e *Engine, f *os.File, to int64, buf []byte) error {
	c, ok := a.copies[to]
	if !ok {
		return nil
	}
	from, err := e.Root.Open(filepath.Join(staging.Top, c.from))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(io.NewOffsetWriter(f, to), io.NewSectionReader(from, c.at, c.size), buf)
	return errors.Join(err, from.Close())
}
