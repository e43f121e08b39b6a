package verify_test

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

func TestParseDigest(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for in, want := range map[string]func(error) bool{
		"sha256:" + hex:                     func(err error) bool { return err == nil },
		"sha512:" + hex + hex:               errdefs.IsNotImplemented,
		"md5:" + hex[:32]:                   errdefs.IsNotImplemented,
		"sha256:" + hex[1:]:                 errdefs.IsInvalidArgument,
		"sha256:" + hex + "0":               errdefs.IsInvalidArgument,
		"sha256:" + strings.ToUpper(hex):    errdefs.IsInvalidArgument,
		"sha256:../../x":                    errdefs.IsInvalidArgument,
		"sha256-" + hex:                     errdefs.IsInvalidArgument,
		"":                                  errdefs.IsInvalidArgument,
		"sha256:" + hex[:62] + "/.":         errdefs.IsInvalidArgument,
		"sha256:" + hex + "\n":              errdefs.IsInvalidArgument,
		"sha256:" + strings.Repeat("g", 64): errdefs.IsInvalidArgument,
	} {
		if d, err := verify.ParseDigest(in); !want(err) || err == nil && d.String() != in {
			t.Errorf("ParseDigest(%q) = %q, %v", in, d, err)
		}
	}
}
