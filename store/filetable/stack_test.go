package filetable

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	gocmp "github.com/google/go-cmp/cmp"
)

// layered returns files of layers: "a b/" are a file and a directory. The size of a file is the number
// of its layer.
func layered(layers ...string) []File {
	var files []File
	for i, l := range layers {
		for name := range strings.FieldsSeq(l) {
			f := File{Path: name, Type: TypeReg, Size: int64(i), Layer: i}
			if p, dir := strings.CutSuffix(name, "/"); dir {
				f.Path, f.Type = p, TypeDir
			} else if p, link := strings.CutSuffix(name, "@"); link {
				f.Path, f.Type, f.Target = p, TypeSymlink, "x"
			}
			files = append(files, f)
		}
	}
	return files
}

func TestStack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		layers []string
		want   []File
	}{
		{"a later layer wins", []string{"a b", "a"}, []File{{Path: "a", Type: TypeReg, Size: 1}, {Path: "b", Type: TypeReg}}},
		{"a whiteout takes away what is below", []string{"a b", ".wh.a"}, []File{{Path: "b", Type: TypeReg}}},
		{"a whiteout of a directory takes away what is in it", []string{"d/ d/a d/e/b da", ".wh.d"}, []File{{Path: "da", Type: TypeReg}}},
		{"a whiteout leaves its own layer, in any order", []string{"d/a", "d/b .wh.d d/c"}, []File{{Path: "d/b", Type: TypeReg, Size: 1}, {Path: "d/c", Type: TypeReg, Size: 1}}},
		{"a whiteout leaves the layers above", []string{"a", ".wh.a", "a"}, []File{{Path: "a", Type: TypeReg, Size: 2}}},
		{"an opaque directory", []string{"d/ d/a d/e/b c", "d/.wh..wh..opq d/n"}, []File{{Path: "c", Type: TypeReg}, {Path: "d", Type: TypeDir}, {Path: "d/n", Type: TypeReg, Size: 1}}},
		{"an opaque root", []string{"d/ d/a c", ".wh..wh..opq n"}, []File{{Path: "n", Type: TypeReg, Size: 1}}},
		{"a file in the place of a directory", []string{"d/ d/a", "d"}, []File{{Path: "d", Type: TypeReg, Size: 1}}},
		{"a directory in the place of a file", []string{"d", "d/ d/a"}, []File{{Path: "d", Type: TypeDir, Size: 1}, {Path: "d/a", Type: TypeReg, Size: 1}}},
		{"a link in the place of a directory", []string{"d/ d/a", "d@"}, []File{{Path: "d", Type: TypeSymlink, Size: 1, Target: "x"}}},
		{"what was hidden hides nothing again", []string{"d/a", "d", ".wh.d", "d/ d/b"}, []File{{Path: "d", Type: TypeDir, Size: 3}, {Path: "d/b", Type: TypeReg, Size: 3}}},
		{"what aufs keeps is left out", []string{"a .wh..wh.plnk/1.2 .wh..wh.aufs"}, []File{{Path: "a", Type: TypeReg}}},
		{"a whiteout of what is not there", []string{"a", ".wh.b"}, []File{{Path: "a", Type: TypeReg}}},
	} {
		got, err := Stack(layered(tt.layers...))
		if diff := gocmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
	for _, bad := range []string{".wh.", "d/.wh..", ".wh..."} {
		if _, err := Stack(layered(bad)); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// unpackInOrder is the reference for Stack: it unpacks one layer after the other.
func unpackInOrder(files []File) []File {
	var tree []File
	remove := func(layer int, match func(string) bool) {
		tree = slices.DeleteFunc(tree, func(f File) bool { return f.Layer < layer && match(f.Path) })
	}
	for _, f := range files {
		i := strings.LastIndexByte(f.Path, '/') + 1
		dir, name := f.Path[:i], f.Path[i:]
		switch {
		case strings.HasPrefix(dir, ".wh.") || strings.Contains(dir, "/.wh."):
		case name == ".wh..wh..opq":
			remove(f.Layer, func(p string) bool { return strings.HasPrefix(p, dir) })
		case strings.HasPrefix(name, ".wh..wh."):
		case strings.HasPrefix(name, ".wh."):
			gone := dir + name[len(".wh."):]
			remove(f.Layer, func(p string) bool { return p == gone || strings.HasPrefix(p, gone+"/") })
		default:
			tree = slices.DeleteFunc(tree, func(have File) bool { return have.Path == f.Path })
			if f.Type != TypeDir {
				remove(f.Layer, func(p string) bool { return strings.HasPrefix(p, f.Path+"/") })
			}
			tree = append(tree, f)
		}
	}
	slices.SortFunc(tree, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	for i := range tree {
		tree[i].Layer = 0
	}
	return tree
}

// FuzzStack compares Stack with unpackInOrder.
func FuzzStack(f *testing.F) {
	f.Add("a b d/ d/a", ".wh.a d/.wh..wh..opq", "d a/b")
	f.Add("d/a/b", ".wh.d d/c", ".wh..wh..opq x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		files := layered(a, b, c)
		for _, f := range files {
			if p, err := CleanPath(f.Path); err != nil || p != f.Path {
				return
			}
		}
		got, err := Stack(files)
		if err != nil {
			return
		}
		if CheckParents(got) != nil {
			return // not a valid model
		}
		if diff := gocmp.Diff(unpackInOrder(files), got); len(got) > 0 && diff != "" {
			t.Fatalf("(-in order +Stack):\n%s", diff)
		}
	})
}
