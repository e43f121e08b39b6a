package carton

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Names of special files of a carton.
const (
	nameManifest = "MANIFEST"
	nameLinks    = "LINKS"
	nameInfo     = "carton.toml"
	nameIndex    = "tensor_data/index.toml"

	dirModel   = "model/"
	dirTensors = "tensor_data/"
	dirMisc    = "misc/"
)

// MaxManifestSize limits MANIFEST, in bytes.
const MaxManifestSize = 16 << 20 // 16 MiB

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// An Entry is a line of MANIFEST.
type Entry struct {
	Path   string // clean
	Digest digest.Digest
}

// parseManifest parses a MANIFEST. Lines can end in CRLF; the last one needs no line end. It
// returns errdefs.ErrInvalidArgument, naming the line, for an invalid file.
func parseManifest(p []byte) ([]Entry, error) {
	if len(p) > MaxManifestSize {
		return nil, invalid("MANIFEST of %d bytes, more than %d", len(p), MaxManifestSize)
	}
	var all []Entry
	seen := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(p), "\n"), "\n") {
		n := len(all) + 1
		if n > zipdir.MaxEntries {
			return nil, invalid("MANIFEST of more than %d lines", zipdir.MaxEntries)
		}
		e, err := parseLine(strings.TrimSuffix(line, "\r"))
		if err != nil {
			return nil, fmt.Errorf("MANIFEST line %d: %w", n, err)
		}
		if seen[e.Path] {
			return nil, invalid("MANIFEST line %d: duplicate %q", n, e.Path)
		}
		seen[e.Path] = true
		all = append(all, e)
	}
	if !seen[nameInfo] {
		return nil, invalid("MANIFEST does not list %s", nameInfo)
	}
	return all, checkOrder(all)
}

// checkOrder returns an error unless paths are in alphabetical order. Some writers sort whole
// lines, including the equals sign.
func checkOrder(all []Entry) error {
	byPath, byLine := true, true
	for i, e := range all[1:] {
		byPath = byPath && all[i].Path <= e.Path
		byLine = byLine && all[i].Path+"=" <= e.Path+"="
		if !byPath && !byLine {
			return invalid("MANIFEST line %d: %q is not in alphabetical order", i+2, e.Path)
		}
	}
	return nil
}

func parseLine(line string) (Entry, error) {
	i := strings.LastIndexByte(line, '=') // a path can also contain one
	if i < 0 {
		return Entry{}, invalid("%.100q is not of the form path=sha256", line)
	}
	p, err := filetable.CleanPath(line[:i])
	if err != nil {
		return Entry{}, err
	}
	if p != line[:i] {
		return Entry{}, invalid("path %q is not clean", line[:i])
	}
	if p == nameManifest || p == nameLinks {
		return Entry{}, invalid("%s must not be listed", p)
	}
	d, err := parseHash(line[i+1:])
	return Entry{Path: p, Digest: d}, err
}

// parseHash parses the hexadecimal form of a sha256, in either case.
func parseHash(s string) (digest.Digest, error) {
	if len(s) != 64 {
		return "", invalid("%.100q is not a sha256", s)
	}
	return verify.ParseDigest("sha256:" + strings.ToLower(s))
}
