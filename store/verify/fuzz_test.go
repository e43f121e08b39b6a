package verify_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// FuzzParseDigest compares ParseDigest with a pattern: digests are file names.
func FuzzParseDigest(f *testing.F) {
	for _, s := range []string{digest.FromString("x").String(), "sha256:", "sha256:../../x", "sha512:" + strings.Repeat("a", 128), "SHA256:00", ""} {
		f.Add(s)
	}
	pattern := regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	f.Fuzz(func(t *testing.T, s string) {
		d, err := verify.ParseDigest(s)
		if (err == nil) != pattern.MatchString(s) || err == nil && d.String() != s {
			t.Fatalf("ParseDigest(%q) = %q, %v", s, d, err)
		}
		if err != nil && !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
			t.Fatalf("error without a category: %v", err)
		}
	})
}
