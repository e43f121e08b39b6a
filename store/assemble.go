package store

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
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// assemblyPrefix begins the names of the directories that files are put together in.
const assemblyPrefix = "assembly-"

// An assembly is a file that is put together from parts.
type assembly struct {
	file   filetable.File
	recipe digest.Digest
	copies []partCopy
	digest digest.Digest // set by complete
}

// A partCopy is a part whose bytes are staged elsewhere: the same range of a blob can be in
// several files, but is fetched once.
type partCopy struct {
	from string // staged file
	at   int64  // in it
	to   int64  // in the file of the assembly
	size int64
}

// recipeOf names the content of a file with parts: equal recipes make equal files.
func recipeOf(src *filetable.Source) digest.Digest {
	p, err := json.Marshal(src)
	if err != nil {
		panic("store: internal error: source: " + err.Error())
	}
	return digest.FromBytes(p)
}

// dir returns the directory of an assembly, below the directory of partials.
func (a *assembly) dir() string { return assemblyPrefix + a.recipe.Encoded() }

func (a *assembly) staged() string { return a.dir() + "/data" }

// assembled returns the digest of a file with parts: that in the table, or what it was found to
// be; empty if neither is known.
func (s *Store) assembled(f filetable.File) (d digest.Digest, err error) {
	if f.Digest != "" {
		return f.Digest, nil
	}
	d, err = s.db.Assembled(recipeOf(f.Source))
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	return d, err
}

// assemblies returns the files of a table that have to be put together, and where the
// fragments for them are staged.
func (s *Store) assemblies(t *filetable.Table) ([]*assembly, map[digest.Digest][]piece, error) {
	var all []*assembly
	places := map[digest.Digest][]piece{}
	seen := map[digest.Digest]bool{}
	for _, f := range t.Files {
		if f.Source == nil || len(f.Source.Parts) == 0 {
			continue
		}
		a := &assembly{file: f, recipe: recipeOf(f.Source)}
		if seen[a.recipe] {
			continue
		}
		seen[a.recipe] = true
		if d, err := s.assembled(f); err != nil {
			return nil, nil, err
		} else if d != "" && s.has(d) {
			continue
		}
		all = append(all, a)
		var at int64
		for _, part := range f.Source.Parts {
			if part.Blob == "" {
				at += int64(len(part.Inline))
				continue
			}
			if err := a.place(places, part, at); err != nil {
				return nil, nil, err
			}
			at += part.Size
		}
	}
	sizes := map[digest.Digest]int64{}
	for _, b := range t.Blobs {
		sizes[b.Digest] = b.Size
	}
	for d, pieces := range places {
		places[d] = fillGaps(pieces, sizes[d])
	}
	return all, places, nil
}

// place stages a part at its place in the file, or notes that it is to be copied.
func (a *assembly) place(places map[digest.Digest][]piece, part filetable.Source, at int64) error {
	for _, pc := range places[part.Blob] {
		if pc.off == part.Offset && pc.size == part.Size {
			a.copies = append(a.copies, partCopy{from: pc.file, at: pc.at, to: at, size: part.Size})
			return nil
		}
		if pc.off < part.Offset+part.Size && part.Offset < pc.off+pc.size {
			return fmt.Errorf("file %q: range %d+%d of %s overlaps another part: %w", a.file.Path, part.Offset, part.Size, part.Blob, errdefs.ErrNotImplemented)
		}
	}
	places[part.Blob] = append(places[part.Blob], piece{off: part.Offset, size: part.Size, file: a.staged(), at: at})
	return nil
}

// fillGaps sorts pieces and stages what they leave out.
func fillGaps(pieces []piece, size int64) []piece {
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.off, b.off) })
	var out []piece
	var at int64
	gap := func(to int64) {
		if to > at {
			out = append(out, piece{off: at, size: to - at, file: "gaps", at: at})
		}
	}
	for _, pc := range pieces {
		gap(pc.off)
		out = append(out, pc)
		at = pc.off + pc.size
	}
	gap(size)
	return out
}

// begin makes the staged file with its inline parts.
func (a *assembly) begin(s *Store) error {
	if err := s.root.MkdirAll(filepath.Join(partialDir, a.dir()), 0o700); err != nil {
		return err
	}
	f, err := s.root.OpenFile(filepath.Join(partialDir, a.staged()), os.O_CREATE|os.O_WRONLY, objectMode)
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

// complete hashes the file, part by part as ready says that the blobs of the parts have been
// verified, and makes it durable. ready returns an error if a blob will not be.
func (a *assembly) complete(ctx context.Context, s *Store, ready func(context.Context, digest.Digest) error) error {
	f, err := s.root.OpenFile(filepath.Join(partialDir, a.staged()), os.O_RDWR, 0)
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
			if err := a.copy(s, f, at, buf); err != nil {
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
		return fmt.Errorf("file %q was put together with %d bytes, not %d: %w", a.file.Path, info.Size(), a.file.Size, errdefs.ErrDataLoss)
	}
	a.digest = hash.Digest()
	if want := a.file.Digest; want != "" {
		if err := verify.Compare(want, a.digest, a.file.Size, at); err != nil {
			return fmt.Errorf("file %q is not what its table says: pull the model again: %w", a.file.Path, err)
		}
	}
	return f.Sync()
}

// publish makes the file an object.
func (a *assembly) publish(s *Store) error {
	file := publication{from: filepath.Join(partialDir, a.staged()), d: a.digest, size: a.file.Size}
	err := s.publish([]publication{file}, meta.Arrival{Assembled: map[digest.Digest]digest.Digest{a.recipe: a.digest}})
	if err != nil {
		return err
	}
	return s.root.RemoveAll(filepath.Join(partialDir, a.dir()))
}

// copy brings the part at the offset to from where it is staged, if that is elsewhere.
func (a *assembly) copy(s *Store, f *os.File, to int64, buf []byte) error {
	i := slices.IndexFunc(a.copies, func(c partCopy) bool { return c.to == to })
	if i < 0 {
		return nil
	}
	c := a.copies[i]
	from, err := s.root.Open(filepath.Join(partialDir, c.from))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(io.NewOffsetWriter(f, c.to), io.NewSectionReader(from, c.at, c.size), buf)
	return errors.Join(err, from.Close())
}
