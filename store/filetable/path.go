package filetable

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Limits of a path in a model, in bytes and in components. Linux allows 255 bytes per name and 4096
// per path.
const (
	maxPath      = 4096
	maxComponent = 255
	maxDepth     = 64
)

// maxPrefix limits Origin.Prefix, in bytes.
const maxPrefix = 128

// CleanPrefix returns p as an Origin.Prefix: "" for "", ".", and "/", otherwise the path without slashes around it. It
// returns errdefs.ErrInvalidArgument if that is not a path in a model, or is a whiteout, or has more than 128 bytes.
func CleanPrefix(p string) (string, error) {
	inside := strings.Trim(p, "/")
	if inside == "" || path.Clean(inside) == "." {
		return "", nil
	}
	clean, err := CleanPath(inside)
	switch {
	case err != nil:
		return "", err
	case len(clean) > maxPrefix:
		return "", fmt.Errorf("path %.300q: more than %d bytes: %w", p, maxPrefix, errdefs.ErrInvalidArgument)
	case IsWhiteout(clean):
		return "", fmt.Errorf("path %q: the name means a deletion in an image: %w", p, errdefs.ErrInvalidArgument)
	}
	return clean, nil
}

// Place returns files at their paths in a mount: below the prefix of their table (Origin.Prefix). It returns
// errdefs.ErrInvalidArgument if such a path is too long or too deep.
func Place(prefix string, files []File) ([]File, error) {
	if prefix == "" {
		return files, nil
	}
	placed := make([]File, len(files))
	for i, f := range files {
		p, err := CleanPath(prefix + "/" + f.Path)
		if err != nil {
			return nil, err
		}
		placed[i], placed[i].Path = f, p
	}
	return placed, nil
}

// CleanPath returns p as a File.Path: relative, slash-separated, without "." and ".." components,
// without a trailing slash. It returns errdefs.ErrInvalidArgument for a path that is empty,
// absolute, leaves the model or contains invalid characters.
//
// A backslash is an ordinary character on Linux, but CleanPath also rejects a path that leaves the
// model when backslashes are read as slashes.
func CleanPath(p string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("path %q: %s: %w", p, why, errdefs.ErrInvalidArgument)
	}
	switch {
	case p == "":
		return bad("empty")
	case len(p) > maxPath:
		return "", fmt.Errorf("path of %d bytes, more than %d: %w", len(p), maxPath, errdefs.ErrInvalidArgument)
	case !utf8.ValidString(p):
		return bad("not UTF-8")
	case strings.HasPrefix(p, "/"):
		return bad("absolute")
	}
	for _, r := range p {
		if r < 0x20 || r == 0x7f {
			return bad("control character")
		}
	}
	c := path.Clean(p)
	if c == "." || c == ".." || strings.HasPrefix(c, "../") {
		return bad("leaves the model or names its root")
	}
	for _, s := range []string{p, c} { // "./\" is inside the model, but its clean form "\" is not
		if b := path.Clean(strings.ReplaceAll(s, `\`, "/")); b == ".." || strings.HasPrefix(b, "../") || strings.HasPrefix(b, "/") {
			return bad("leaves the model when backslashes are separators")
		}
	}
	parts := strings.Split(c, "/")
	if len(parts) > maxDepth {
		return bad("too deep")
	}
	for _, s := range parts {
		if len(s) > maxComponent {
			return bad("name too long")
		}
	}
	return c, nil
}
