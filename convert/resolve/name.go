package resolve

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
)

// nameOf returns what a name can be.
func nameOf(s string) format.Name {
	_, err := ParseRef(s)
	return format.Name{Text: s, IsPath: IsPath(s), IsReference: err == nil}
}

// IsPath reports whether a name is the path of a file, and not a reference.
func IsPath(s string) bool {
	if filepath.IsAbs(s) || s == "." || s == ".." || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") {
		return true
	}
	if _, err := ParseRef(s); err == nil {
		return false
	}
	_, err := os.Lstat(s)
	return err == nil
}
