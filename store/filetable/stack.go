package filetable

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Name prefixes of files that delete other files in a layer of an image.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md#whiteouts
const (
	whiteout       = ".wh."
	whiteoutMeta   = whiteout + whiteout // internal files of aufs, except whiteoutOpaque
	whiteoutOpaque = whiteoutMeta + ".opq"
)

// IsWhiteout reports whether a component of path p is a whiteout.
func IsWhiteout(p string) bool {
	return strings.HasPrefix(p, whiteout) || strings.Contains(p, "/"+whiteout)
}

// Stack returns the visible files of image layers, sorted by path. Of two files at one path, the
// one with the higher File.Layer wins; within a layer, the last one. A file replaces a directory
// with its content; whiteouts hide files of the layers below. File.Layer of the result is 0. Stack
// returns errdefs.ErrInvalidArgument for a whiteout without a target.
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

// Seen returns the visible files of a valid table, without those of archives that are not unpacked
// yet. The caller must not change them.
func (t *Table) Seen() []File {
	if !t.Stacked {
		return t.Files
	}
	files, _ := Stack(t.Files) // Validate has succeeded
	return files
}

// A stack collects layers from the top down, so the paths that the layers above hide are known when
// a layer is added.
type stack struct {
	files  []File
	seen   map[string]bool // paths of files
	gone   map[string]bool // paths hidden in lower layers, with everything below them
	closed map[string]bool // paths whose content is hidden in lower layers
}

// add adds the files of the next lower layer.
func (s *stack) add(layer []File) error {
	var gone, closed []string // apply to lower layers only
	for _, f := range slices.Backward(layer) {
		dir, name := path.Dir(f.Path), path.Base(f.Path)
		target, is := strings.CutPrefix(name, whiteout)
		switch {
		case IsWhiteout(dir): // internal to aufs
		case name == whiteoutOpaque:
			closed = append(closed, dir)
		case strings.HasPrefix(name, whiteoutMeta):
		case is && (target == "" || target == "." || target == ".."):
			return fmt.Errorf("file %q: whiteout without a target: %w", f.Path, errdefs.ErrInvalidArgument)
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
