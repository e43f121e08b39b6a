package store

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Files returns the files of a table as they are shown: sorted by path, each path once,
// every regular file with its digest. It returns errdefs.ErrUnavailable if a file is not
// complete, and errdefs.ErrInvalidArgument if two layers claim a path with different content.
func (s *Store) Files(ctx context.Context, table digest.Digest) ([]File, error) {
	return s.files(ctx, table, func(f File) error {
		if s.has(f.Digest) {
			return nil
		}
		return fmt.Errorf("file %q (%s) is not on the node: %w", f.Path, f.Digest, errdefs.ErrUnavailable)
	})
}

// Readable is Files, but the files need not be complete: it is enough that they can be read
// (Expose).
func (s *Store) Readable(ctx context.Context, table digest.Digest) ([]File, error) {
	return s.files(ctx, table, func(f File) error {
		if _, err := s.LazySize(f.Digest); err != nil {
			return fmt.Errorf("file %q (%s) can not be read: %w: %w", f.Path, f.Digest, err, errdefs.ErrUnavailable)
		}
		return nil
	})
}

// files returns the files of a table if check has nothing against any regular one.
func (s *Store) files(ctx context.Context, table digest.Digest, check func(File) error) ([]File, error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return nil, err
	}
	files, err := s.resolve(t)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type != TypeReg {
			continue
		}
		if err := check(f); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// resolve settles what the archives of a table contain. With errdefs.ErrUnavailable, when
// something is not known yet, it still returns what is.
func (s *Store) resolve(t *Table) ([]File, error) {
	r := resolver{s: s, blobs: map[digest.Digest]Blob{}, chunked: chunkedBlobs(t), archives: map[digest.Digest]map[int64]content{}}
	for _, b := range t.Blobs {
		r.blobs[b.Digest] = b
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
	slices.SortStableFunc(r.files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	out := r.files[:0]
	for _, f := range r.files {
		if n := len(out); n > 0 && out[n-1].Path == f.Path {
			if err := sameFile(out[n-1], f); err != nil {
				return nil, err
			}
			if out[n-1].Digest == "" {
				out[n-1] = f
			}
			continue
		}
		out = append(out, f)
	}
	if err := checkParents(out); err != nil {
		return nil, err
	}
	if err := checkLinks(out); err != nil {
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

type resolver struct {
	s        *Store
	blobs    map[digest.Digest]Blob
	chunked  map[digest.Digest]bool              // blobs whose files are brought by their chunks
	archives map[digest.Digest]map[int64]content // members by offset
	files    []File
	missing  error
}

func (r *resolver) file(f File) error {
	if f.Source != nil && len(f.Source.Parts) > 0 {
		d, err := r.s.assembled(f)
		if err != nil {
			return err
		}
		if d == "" {
			r.missing = fmt.Errorf("file %q is not put together: %w", f.Path, errdefs.ErrUnavailable)
		}
		f.Digest = d
		r.files = append(r.files, f)
		return nil
	}
	if f.Source == nil || r.blobs[f.Source.Blob].Archive == ArchiveNone || r.chunked[f.Source.Blob] {
		r.files = append(r.files, f)
		return nil
	}
	members, ok := r.archives[f.Source.Blob]
	if !ok {
		var err error
		if members, err = r.members(f.Source.Blob); err != nil {
			return err
		}
	}
	if members != nil {
		c, ok := members[f.Source.Offset]
		if !ok || c.Size != f.Size || f.Digest != "" && f.Digest != c.Digest {
			return fmt.Errorf("file %q: layer %d (%s) has no such member at %d: %w", f.Path, r.blobs[f.Source.Blob].Layer, f.Source.Blob, f.Source.Offset, errdefs.ErrInvalidArgument)
		}
		f.Digest = c.Digest
	}
	r.files = append(r.files, f)
	return nil
}

// members returns the regular files of a plain tar by offset, or nil if they are not known.
func (r *resolver) members(blob digest.Digest) (map[int64]content, error) {
	contents, err := r.s.contents(blob)
	if errdefs.IsNotFound(err) {
		r.missing = missingBlob(blob)
		r.archives[blob] = nil
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	members := make(map[int64]content, len(contents))
	for _, c := range contents {
		if c.Type == TypeReg {
			members[c.Offset] = c
		}
	}
	r.archives[blob] = members
	return members, nil
}

func (r *resolver) unpack(u Unpack) error {
	contents, err := r.s.contents(u.Blob)
	if errdefs.IsNotFound(err) {
		r.missing = missingBlob(u.Blob)
		return nil
	} else if err != nil {
		return err
	}
	members := make([]Member, len(contents))
	digests := make(map[int64]digest.Digest, len(contents))
	for i, c := range contents {
		members[i] = c.Member
		if c.Type == TypeReg {
			digests[c.Offset] = c.Digest
		}
	}
	for _, m := range PlaceTar(members, u.As) {
		f := File{Path: m.Path, Type: m.Type, Mode: m.Mode, ModTime: m.ModTime, Size: m.Size, Target: m.Target}
		if m.Type == TypeReg {
			f.Digest = digests[m.Offset]
			f.Source = &Source{Blob: u.Blob}
		}
		r.files = append(r.files, f)
	}
	return nil
}

// checkParents returns an error if a path goes through a file or a symbolic link.
func checkParents(files []File) error {
	types := make(map[string]string, len(files))
	for _, f := range files {
		types[f.Path] = f.Type
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if typ, ok := types[dir]; ok && typ != TypeDir {
				return fmt.Errorf("file %q: %q is both a file and a directory: %w", f.Path, dir, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// checkLinks returns an error if a symbolic link leads through another one and then up: by name
// it stays inside the model (checkTarget), followed it can leave.
func checkLinks(files []File) error {
	links := map[string]bool{}
	for _, f := range files {
		if f.Type == TypeSymlink {
			links[f.Path] = true
		}
	}
	for _, f := range files {
		if f.Type != TypeSymlink {
			continue
		}
		at, through := path.Dir(f.Path), false
		for name := range strings.SplitSeq(f.Target, "/") {
			if name == ".." && through {
				return fmt.Errorf("symbolic link %q: target %q goes up after another link: %w", f.Path, f.Target, errdefs.ErrInvalidArgument)
			}
			at = path.Join(at, name)
			through = through || links[at]
		}
	}
	return nil
}
