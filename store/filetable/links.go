package filetable

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// A linkNode is a symbolic link, or a directory that has some at any depth.
type linkNode struct {
	parent *linkNode // of the root, itself
	names  map[string]*linkNode
	link   bool
}

// add returns the node with a name in a directory, which it makes if necessary.
func (d *linkNode) add(name string) *linkNode {
	if n := d.names[name]; n != nil {
		return n
	}
	if d.names == nil {
		d.names = map[string]*linkNode{}
	}
	n := &linkNode{parent: d}
	d.names[name] = n
	return n
}

// CheckLinks returns an error if a symbolic link goes up after it passed through another link: it
// stays inside the model by name (File.Target), but can leave it when followed. CheckParents must have accepted the
// files: it limits the directories.
func CheckLinks(files []File) error {
	root := &linkNode{}
	root.parent = root
	links := map[int]*linkNode{} // by index in files
	for i, f := range files {
		if f.Type != TypeSymlink {
			continue
		}
		at := root
		for name := range strings.SplitSeq(f.Path, "/") {
			at = at.add(name)
		}
		at.link, links[i] = true, at
	}
	for i, f := range files {
		if f.Type == TypeSymlink && links[i].parent.goesUp(f.Target) {
			return fmt.Errorf("symbolic link %q: target %q goes up after another link: %w", f.Path, f.Target, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// goesUp reports whether a target, read from a directory, goes up after it passed through a link.
func (d *linkNode) goesUp(target string) bool {
	through, below := false, 0 // below is the depth below d, where no links are
	for name := range strings.SplitSeq(target, "/") {
		switch next := d.names[name]; {
		case name == "" || name == ".":
		case name == ".." && through:
			return true
		case name == ".." && below > 0:
			below--
		case name == "..":
			d = d.parent
		case below > 0 || next == nil:
			below++
		default:
			d, through = next, through || next.link
		}
	}
	return false
}
