//go:build containers_image_openpgp

package mirror

import (
	"testing"

	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
)

// skopeo copies as "skopeo copy --all --preserve-digests" does.
var skopeo = []mirror{{"skopeo", func(t *testing.T, from, to string) {
	policy, err := signature.NewPolicyContext(&signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		t.Fatal(err)
	}
	defer policy.Destroy()
	src, err := docker.ParseReference("//" + from)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := docker.ParseReference("//" + to)
	if err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir() // in place of the configuration of this machine
	sys := &types.SystemContext{
		DockerInsecureSkipTLSVerify: types.OptionalBoolTrue, BlobInfoCacheDir: empty,
		SystemRegistriesConfPath: "/dev/null", SystemRegistriesConfDirPath: empty, RegistriesDirPath: empty,
	}
	if _, err := copy.Image(t.Context(), policy, dst, src, &copy.Options{
		SourceCtx: sys, DestinationCtx: sys, ImageListSelection: copy.CopyAllImages, PreserveDigests: true,
	}); err != nil {
		t.Fatal(err)
	}
}}}
