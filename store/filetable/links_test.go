package filetable

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestLinksThroughLinks has links in a directory with others.
func TestLinksThroughLinks(t *testing.T) {
	for target, good := range map[string]bool{
		"d/x": true, "e/../d/x": true, "d/../e/f": true, "../c": true, "none/../d/in": true, "none/../../d": true, "d/in/x": true,
		"lost/x": true, "./d//in": true, "none/in/..": true, "none/in/../../..": true, "e/f/./": true, "../c/d/in": true, "../none/in/..": true,
		"d/in/..": false, "d/in/./..": false, "in/..": false, "d/../in/x/..": false, "none/../in/../d": false, "lost/..": false,
		"none/../d/in//..": false, "../c/in/..": false, "none/../../c/in/..": false,
	} {
		files := []File{
			{Path: "c/d/in", Type: TypeSymlink, Target: "x"}, {Path: "c/d/x", Type: TypeReg}, {Path: "c/e/f", Type: TypeSymlink, Target: "../d"},
			{Path: "c/e/x", Type: TypeReg}, {Path: "c/in", Type: TypeSymlink, Target: "d"}, {Path: "c/lost", Type: TypeSymlink, Target: "nothing"},
			{Path: "c/l", Type: TypeSymlink, Target: target},
		}
		if err := CheckLinks(files); good != (err == nil) || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v, want an error: %t", target, err, !good)
		}
	}
}

// TestLongestLinks has 3,000 links as long as they can be: to join the names of each to paths takes minutes.
func TestLongestLinks(t *testing.T) {
	deep := strings.Repeat("a/", maxDepth-1)
	for _, target := range []string{strings.Repeat("a/", maxPath/2), strings.Repeat("b/../", maxPath/5), strings.Repeat("a/../", maxPath/5)} {
		var files []File
		for i := range 3000 {
			files = append(files, File{Path: fmt.Sprintf("%s%d", deep, i), Type: TypeSymlink, Target: target})
		}
		if err := CheckLinks(files); err != nil {
			t.Error(err)
		}
	}
}
