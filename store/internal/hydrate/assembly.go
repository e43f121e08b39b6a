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
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// assemblyPrefix is the prefix of the names of assembly directories.
const assemblyPrefix = "assembly-"

// An assembly is a file made of parts.
type assembly struct {
	file   filetable.File
	recipe digest.Digest
	group  string // of the sources of the parts
	copies []partCopy
	digest digest.Digest // set by complete
}

// A partCopy is a part that is staged elsewhere: a range of a blob can be in several files, but is
// fetched once.
type partCopy struct {
	from string // staged file
	at   int64  // offset in from
	to   int64  // offset in the assembled file
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

// dir returns the name of the directory of an assembly in staging.Area. Until all parts are
// verified it contains bytes of one group of sources only.
func (a *assembly) dir() string {
	return assemblyPrefix + digest.FromString(a.recipe.String()+"\n"+a.group).Encoded()
}

func (a *assembly) staged() string { return a.dir() + "/data" }

// assemblies returns the files of a table to assemble for these sources, and where their fragments
// are staged.
func (e *Engine) assemblies(t *filetable.Table, group string, from *transfer.Sources) ([]*assembly, map[digest.Digest][]staging.Piece, error) {
	var all []*assembly
	places := map[digest.Digest][]staging.Piece{}
	seen := map[digest.Digest]bool{}
	for _, f := range t.Files {
		if f.Source == nil || len(f.Source.Parts) == 0 {
			continue
		}
		a := &assembly{file: f, recipe: RecipeOf(f.Source), group: group}
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
		places[d] = staging.FillGaps(pieces, sizes[d])
	}
	slices.SortFunc(all, func(a, b *assembly) int { return cmp.Compare(a.dir(), b.dir()) })
	return all, places, nil
}

// place stages a part at its offset in the file, or records that it is copied.
func (a *assembly) place(places map[digest.Digest][]staging.Piece, part filetable.Source, at int64) error {
	for _, pc := range places[part.Blob] {
		if pc.Off == part.Offset && pc.Size == part.Size {
			a.copies = append(a.copies, partCopy{from: pc.File, at: pc.At, to: at, size: part.Size})
			return nil
		}
		if pc.Off < part.Offset+part.Size && part.Offset < pc.Off+pc.Size {
			return fmt.Errorf("file %q: range %d+%d of %s overlaps another part: %w", a.file.Path, part.Offset, part.Size, part.Blob, errdefs.ErrNotImplemented)
		}
	}
	places[part.Blob] = append(places[part.Blob], staging.Piece{Off: part.Offset, Size: part.Size, File: a.staged(), At: at})
	return nil
}

// begin creates the staged file with its inline parts.
func (a *assembly) begin(e *Engine) error {
	if err := e.Root.MkdirAll(filepath.Join(staging.Top, a.dir()), 0o700); err != nil {
		return err
	}
	f, err := e.Root.OpenFile(filepath.Join(staging.Top, a.staged()), os.O_CREATE|os.O_WRONLY, 0o644)
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
// until the blob of a part is verified, and returns an error if it will not be.
func (a *assembly) complete(ctx context.Context, e *Engine, ready func(context.Context, digest.Digest) error) error {
	f, err := e.Root.OpenFile(filepath.Join(staging.Top, a.staged()), os.O_RDWR, 0)
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
	return f.Sync()
}

// publish makes the file an object.
func (a *assembly) publish(e *Engine, from *transfer.Sources) error {
	file := Publication{Staged: filepath.Join(staging.Top, a.staged()), Digest: a.digest, Size: a.file.Size, From: from}
	found := meta.Arrival{Assembled: map[digest.Digest]digest.Digest{a.recipe: a.digest}}
	if err := e.Objects.Publish([]Publication{file}, found); err != nil {
		return err
	}
	return e.Area.Remove(a.dir())
}

// copy copies the part at offset to from where it is staged, if that is elsewhere.
func (a *assembly) copy(e *Engine, f *os.File, to int64, buf []byte) error {
	i := slices.IndexFunc(a.copies, func(c partCopy) bool { return c.to == to })
	if i < 0 {
		return nil
	}
	c := a.copies[i]
	from, err := e.Root.Open(filepath.Join(staging.Top, c.from))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(io.NewOffsetWriter(f, c.to), io.NewSectionReader(from, c.at, c.size), buf)
	return errors.Join(err, from.Close())
}
