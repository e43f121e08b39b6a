package hydrate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Resolve determines the files of a table, including those of archives: sorted by path, without duplicates. With
// errdefs.ErrUnavailable, if some are unknown, it returns the known ones. It returns
// errdefs.ErrInvalidArgument if layers have different content for one path, or the archives too many files.
func Resolve(db *meta.DB, t *filetable.Table) ([]filetable.File, error) {
	r, err := newResolver(db, t)
	if err != nil {
		return nil, err
	}
	for _, f := range t.Files {
		if err := r.file(f); err != nil {
			return nil, err
		}
	}
	for _, u := range t.Unpacks {
		if err := r.unpack(u); err != nil {
			return nil, err
		}
	}
	if t.Stacked {
		if r.files, err = filetable.Stack(r.files); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.files, func(a, b filetable.File) int { return cmp.Compare(a.Path, b.Path) })
	out := r.files[:0]
	for _, f := range r.files {
		if n := len(out); n > 0 && out[n-1].Path == f.Path {
			if err := filetable.SameFile(out[n-1], f); err != nil {
				return nil, err
			}
			if out[n-1].Digest == "" {
				out[n-1] = f
			}
			continue
		}
		out = append(out, f)
	}
	if err := filetable.CheckParents(out); err != nil {
		return nil, err
	}
	if err := filetable.CheckLinks(out); err != nil {
		return nil, err
	}
	if r.missing != nil {
		return out, r.missing
	}
	return out, nil
}

func missingBlob(d digest.Digest) error {
	return fmt.Errorf("blob %s is not on the node: %w", d, errdefs.ErrUnavailable)
}

// Headers reports whether the headers of the uncompressed tars of a table, and the bytes of its files with parts and a
// digest, are known to be those of the verified blobs. It returns errdefs.ErrInvalidArgument if they are others.
func Headers(db *meta.DB, t *filetable.Table) (known bool, err error) {
	known = true
	for _, b := range t.Blobs {
		if b.Index == "" {
			continue
		}
		switch _, err := verifiedMembers(db, b); {
		case errdefs.IsUnavailable(err):
			known = false
		case err != nil:
			return false, err
		}
	}
	for _, f := range t.Files {
		if f.Digest == "" || f.Source == nil || len(f.Source.Parts) == 0 {
			continue
		}
		switch d, err := db.Assembled(RecipeOf(f.Source)); {
		case errdefs.IsNotFound(err):
			known = false
		case err != nil:
			return false, err
		case d != f.Digest:
			return false, fmt.Errorf("file %q has another digest than in its table: %w", f.Path, errdefs.ErrInvalidArgument)
		}
	}
	return known, nil
}

// verifiedMembers returns the members of an uncompressed tar, which must be those of the table. It returns
// errdefs.ErrUnavailable if the tar is not on the node.
func verifiedMembers(db *meta.DB, b filetable.Blob) ([]filetable.Member, error) {
	members, err := db.Contents(b.Digest)
	switch {
	case errdefs.IsNotFound(err):
		return nil, missingBlob(b.Digest)
	case err != nil:
		return nil, err
	case b.Index != "" && b.Index != filetable.IndexDigest(members):
		return nil, fmt.Errorf("layer %d (%s): %w", b.Layer, b.Digest, errHeaders)
	}
	return members, nil
}

type resolver struct {
	db       *meta.DB
	blobs    map[digest.Digest]filetable.Blob
	chunked  map[digest.Digest]bool                       // blobs whose files are fetched by chunks
	archives map[digest.Digest]map[int64]filetable.Member // members by offset
	files    []filetable.File
	missing  error
}

func newResolver(db *meta.DB, t *filetable.Table) (*resolver, error) {
	r := &resolver{db: db, blobs: map[digest.Digest]filetable.Blob{}, chunked: chunkedBlobs(t), archives: map[digest.Digest]map[int64]filetable.Member{}}
	for _, b := range t.Blobs {
		r.blobs[b.Digest] = b
		if !b.PlainTar() || r.chunked[b.Digest] {
			continue
		}
		if err := r.tar(b); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *resolver) file(f filetable.File) error {
	if f.Source != nil && len(f.Source.Parts) > 0 {
		d, err := Assembled(r.db, f)
		if err != nil {
			return err
		}
		if d == "" {
			r.missing = fmt.Errorf("file %q is not assembled: %w", f.Path, errdefs.ErrUnavailable)
		}
		f.Digest = d
		r.files = append(r.files, f)
		return nil
	}
	if f.Source == nil || r.blobs[f.Source.Blob].Archive == filetable.ArchiveNone || r.chunked[f.Source.Blob] {
		r.files = append(r.files, f)
		return nil
	}
	if members := r.archives[f.Source.Blob]; members != nil {
		c, ok := members[f.Source.Offset]
		if !ok || c.Size != f.Size || f.Digest != "" && f.Digest != c.Digest {
			return fmt.Errorf("file %q: layer %d (%s) has no such member at %d: %w", f.Path, r.blobs[f.Source.Blob].Layer, f.Source.Blob, f.Source.Offset, errdefs.ErrInvalidArgument)
		}
		f.Digest = c.Digest
	}
	r.files = append(r.files, f)
	return nil
}

// tar reads the members of an uncompressed tar.
func (r *resolver) tar(b filetable.Blob) error {
	contents, err := verifiedMembers(r.db, b)
	if errdefs.IsUnavailable(err) {
		r.missing = err
		return nil
	} else if err != nil {
		return err
	}
	members := make(map[int64]filetable.Member, len(contents))
	for _, c := range contents {
		if c.Type == filetable.TypeReg {
			members[c.Offset] = c
		}
	}
	r.archives[b.Digest] = members
	return nil
}

func (r *resolver) unpack(u filetable.Unpack) error {
	contents, err := r.db.Contents(u.Blob)
	if errdefs.IsNotFound(err) {
		r.missing = missingBlob(u.Blob)
		return nil
	} else if err != nil {
		return err
	}
	b := r.blobs[u.Blob]
	if err := filetable.CheckFiles(len(r.files) + len(contents)); err != nil {
		return fmt.Errorf("layer %d (%s): %w", b.Layer, b.Digest, err)
	}
	if b.Files != "" && b.Files != filetable.FilesDigest(contents) {
		return fmt.Errorf("layer %d (%s): its files are not those that the config of the model lists for it: %w", b.Layer, b.Digest, errdefs.ErrInvalidArgument)
	}
	for _, m := range filetable.PlaceTar(contents, u.As) {
		f := m.File()
		f.Layer = u.Layer
		if m.Type == filetable.TypeReg {
			f.Digest = m.Digest
			f.Source = &filetable.Source{Blob: u.Blob}
		}
		r.files = append(r.files, f)
	}
	return nil
}

// Assembled returns the digest of a file with parts, from the table or from its assembly, or "" if it is
// unknown.
func Assembled(db *meta.DB, f filetable.File) (digest.Digest, error) {
	if f.Digest != "" {
		return f.Digest, nil
	}
	d, err := db.Assembled(RecipeOf(f.Source))
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	return d, err
}
