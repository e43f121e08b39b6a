package resolve

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/layout"
)

// The schemes of names.
const (
	LayoutScheme = "oci:"
	ollamaScheme = "ollama:"
	cartonScheme = "carton+" // before a URL
)

// A NameError says that what somebody wrote is no name. errdefs.IsInvalidArgument holds for it.
type NameError struct{ Err error }

func (e *NameError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NameError) Unwrap() error { return e.Err }

// A kind is what a name is one of.
type kind int

const (
	kindReference kind = iota
	kindLayout
	kindOllama
	kindURL
	kindCarton // a file or a directory
	kindFiles
)

func kindOf(name string) kind {
	_, isURL := CartonAddress(name)
	switch {
	case isLayout(name):
		return kindLayout
	case strings.HasPrefix(name, ollamaScheme):
		return kindOllama
	case isURL:
		return kindURL
	case isCartonFile(name):
		return kindCarton
	case IsPath(name):
		return kindFiles
	}
	return kindReference
}

// SplitLayout parts DIR:TAG.
func SplitLayout(s string) (dir, tag string) {
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// splitOllama parts [DIR:]MODEL. A directory begins with / or . and can have colons, if the store
// is there; MODEL can have them too.
func splitOllama(s string) (dir, model string) {
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, ".") {
		return "", s
	}
	for i := 0; i < len(s); i++ {
		if s[i] != ':' {
			continue
		}
		if _, err := os.Stat(filepath.Join(s[:i], "blobs")); err == nil {
			return s[:i], s[i+1:]
		}
	}
	dir, model, _ = strings.Cut(s, ":")
	return dir, model
}

// CartonAddress returns the URL in the name of a carton at a URL.
func CartonAddress(name string) (address string, ok bool) {
	address = strings.TrimPrefix(name, cartonScheme)
	return address, address != name || strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// IsPath reports whether a name is one of a file, and not a reference.
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

// isCartonFile reports whether a name is one of a carton on the disk: a directory that one was
// unpacked to, or a name that ends so and is not that of a repository.
func isCartonFile(s string) bool {
	if IsPath(s) && carton.IsFolder(s) {
		return true
	}
	if !strings.HasSuffix(strings.ToLower(s), ".carton") {
		return false
	}
	if _, err := ParseRef(s); err != nil || IsPath(s) {
		return true
	}
	_, err := os.Lstat(s)
	return err == nil
}

func isLayout(s string) bool {
	if strings.HasPrefix(s, "oci://") { // a reference with a scheme
		return false
	}
	return strings.HasPrefix(s, LayoutScheme) || IsPath(s) && layout.Is(s)
}
