package admin

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

// digestAlgorithm is what digests begin with.
const digestAlgorithm = "sha256:"

// CheckName returns errdefs.ErrInvalidArgument for what is neither a reference nor a digest, nor
// the beginning of one that is long enough.
func CheckName(s string) error {
	if _, ok := digestPrefix(s); ok {
		return nil
	}
	if hex, ok := strings.CutPrefix(s, digestAlgorithm); ok {
		return fmt.Errorf("%.300q is not a digest: after %s come %d to 64 digits of 0-9 and a-f, not %d characters: %w",
			s, digestAlgorithm, minShortDigest, len(hex), errdefs.ErrInvalidArgument)
	}
	_, err := resolve.ParseRef(s)
	return err
}

// digestPrefix returns the hex digits of a digest or of the beginning of one.
func digestPrefix(s string) (hex string, ok bool) {
	hex = strings.TrimPrefix(s, digestAlgorithm)
	return hex, len(hex) >= minShortDigest && len(hex) <= 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// stored returns r in the form that store.Image.Refs have: with the digest or the tag, not
// both, and of a URL the name.
func stored(r remote.Ref) string {
	if r.URL != "" {
		return r.Name()
	}
	if r.Digest != "" {
		r.Tag = ""
	}
	return r.String()
}
