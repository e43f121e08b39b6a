package modelname

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Name identifies a model on the node: a reference, a digest, or the beginning of a digest.
type Name struct {
	Ref remote.Ref // zero if it is a digest
	Hex string     // digits of a digest or of its beginning; empty if it is a reference

	text string
}

const (
	digestAlgorithm = "sha256:"
	minHex          = 6 // digits that a digest can be shortened to
)

// Parse parses a name, or returns errdefs.ErrInvalidArgument.
func Parse(s string) (n Name, err error) {
	n.text = s
	hex, isDigest := strings.CutPrefix(s, digestAlgorithm)
	switch {
	case len(hex) >= minHex && len(hex) <= 64 && strings.Trim(hex, "0123456789abcdef") == "":
		n.Hex = hex
		return n, nil
	case isDigest:
		return n, fmt.Errorf("%.300q is not a digest: after %s come %d to 64 digits of 0-9 and a-f, not %d characters: %w",
			s, digestAlgorithm, minHex, len(hex), errdefs.ErrInvalidArgument)
	}
	n.Ref, err = resolve.ParseRef(s)
	return n, err
}

// String returns the name as it was written.
func (n Name) String() string { return n.text }

// IsRef reports whether n is a reference.
func (n Name) IsRef() bool { return n.Hex == "" }

// Matches reports whether d begins with the digits of n.
func (n Name) Matches(d digest.Digest) bool {
	return n.Hex != "" && d != "" && strings.HasPrefix(d.Encoded(), n.Hex)
}

// Label returns the name of im in pins and lists of jobs: the reference by which it was requested,
// otherwise its first one, otherwise its digest.
func Label(im store.Image, ref remote.Ref) string {
	switch {
	case ref != (remote.Ref{}):
		return ref.Recorded()
	case len(im.Refs) > 0:
		return im.Refs[0]
	}
	return ID(im).String()
}

// ID returns the digest by which an image is known: of its manifest, or of its table if the manifest is unknown.
func ID(im store.Image) digest.Digest { return cmp.Or(im.Manifest, im.Table) }

// The prefixes of the names of the store's references. References of snapshots belong to the
// snapshotter. The daemon owns pins and origins; an origin protects a model while containerd has
// its image in the form of the registry.
const (
	SnapshotPrefix = "snapshot/"
	PinPrefix      = "pin/"
	OriginPrefix   = "origin/"
)

// Pin returns the name of the store's reference for the pin of a recorded reference.
func Pin(ref string) string { return PinPrefix + ref }

// Origin returns the name of the store's reference for the image with the manifest d.
func Origin(d digest.Digest) string { return OriginPrefix + d.String() }

// Pinned returns the recorded reference of a pin of the store. Pins in answers of the daemon have it as their name.
func Pinned(p store.Ref) string { return strings.TrimPrefix(p.Name, PinPrefix) }
