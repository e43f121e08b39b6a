package main

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/registry"
)

// TestDigestOfBareModel says of the digest of a model that pods can mount that private models need a pull first.
func TestDigestOfBareModel(t *testing.T) {
	var out strings.Builder
	a := &app{stdout: &out}
	if err := a.printDigests(&seen{Ref: "h.example/m:v1", Digest: "sha256:1", Origin: "sha256:2", Mounts: registry.Bare}); err != nil {
		t.Fatal(err)
	}
	if want := "h.example/m@sha256:2  pods only; private: after a pull with credentials\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want the end %q", out.String(), want)
	}
}
