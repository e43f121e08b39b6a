package filetable

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Names of files that take others away in a layer of an image.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md#whiteouts
const (
	whiteout       = ".wh."
	whiteoutMeta   = whiteout + whiteout // what aufs keeps for itself, but for the next
	whiteoutOpaque = whiteoutMeta + ".opq"
)

// IsWhiteout reports whether a component of a path means a deletion in a layer of an image.
func IsWhiteout(p string) bool {
	return strings.HasPrefix(p, whiteout) || strings.Contains(p, "/"+whiteout)
}

// Stack returns the files that are seen when layers are put on each other in the way of an image, sorted
// by path: of two files at one path that of the higher File.Layer counts, in one layer the last; a file takes
// the place of a directory with all that is in it; whiteouts take away what is in the layers below. The
// Layer of what is returned is 0. It returns errdefs.ErrInvalidArgument for a whiteout of nothing.
func Stack(files []File) ([]File, error) {
	order := slices.Clone(files)
	slices.SortStableFunc(order, func(a, b File) int { return cmp.Compare(a.Layer, b.Layer) })
	s := stack{seen: map[string]bool{}, gone: map[string]bool{}, closed: map[string]bool{}}
	for end := len(order); end > 0; {
		start := end - 1
		for start > 0 && order[start-1].Layer == order[end-1].Layer {
			start--
		}
		if err := s.add(order[start:end]); err != nil {
			return nil, err
		}
		end = start
	}
	slices.SortFunc(s.files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return s.files, nil
}

// Seen returns the files of a valid table that are seen, as far as they are known before archives are
// unpacked. The caller must not change them.
func (t *Table) Seen() []File {
	if !t.Stacked {
		return t.Files
	}
	files, _ := Stack(t.Files) // Validate has found no error
	return files
}

// A stack is looked at from the top: what the layers above hide is known when a layer is added.
type stack struct {
	files  []File
	seen   map[string]bool // paths of files
	gone   map[string]bool // paths that lower layers do not show, nor what is below them
	closed map[string]bool // paths below which lower layers show nothing
}

// add adds the files of the next lower layer.
func (s *stack) add(layer []File) error {
	var gone, closed []string // count for the layers below only
	for _, f := range slices.Backward(layer) {
		dir, name := path.Dir(f.Path), path.Base(f.Path)
		target, is := strings.CutPrefix(name, whiteout)
		switch {
		case IsWhiteout(dir): // what aufs keeps for itself
		case name == whiteoutOpaque:
			closed = append(closed, dir)
		case strings.HasPrefix(name, whiteoutMeta):
		case is && (target == "" || target == "." || target == ".."):
			return fmt.Errorf("file %q: a whiteout of nothing: %w", f.Path, errdefs.ErrInvalidArgument)
		case is:
			gone = append(gone, path.Join(dir, target))
		case s.seen[f.Path] || s.hidden(f.Path):
		default:
			if f.Type != TypeDir {
				closed = append(closed, f.Path)
			}
			f.Layer = 0
			s.seen[f.Path] = true
			s.files = append(s.files, f)
		}
	}
	for _, p := range gone {
		s.gone[p] = true
	}
	for _, p := range closed {
		s.closed[p] = true
	}
	return nil
}

// hidden reports whether the layers above hide a path.
func (s *stack) hidden(p string) bool {
	if s.gone[p] {
		return true
	}
	for p != "." {
		if p = path.Dir(p); s.gone[p] || s.closed[p] {
			return true
		}
	}
	return false
}
