package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/oci/layout"
)

// crioMounts finds an artifact as CRI-O does in a directory of additional_artifact_stores, by tag or digest, and returns
// the files that it mounts, by name.
// https://github.com/cri-o/cri-o/blob/f954a17e505f8931e91004403b5f5eac71ab6085/internal/ociartifact/store.go
// https://github.com/containers/container-libs/blob/1e46b0756b39/common/pkg/libartifact/store.go
func crioMounts(ctx context.Context, dir, ref string) (map[string]string, error) {
	dir = filepath.Join(dir, "artifacts")
	all, err := layout.List(dir)
	if err != nil {
		return nil, err
	}
	wanted, err := reference.ParseNamed(ref)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		src, err := l.Reference.NewImageSource(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer src.Close()
		p, mediaType, err := image.UnparsedInstance(src, nil).Manifest(ctx)
		if err != nil {
			return nil, err
		}
		if manifest.MIMETypeIsMultiImage(mediaType) {
			return nil, fmt.Errorf("%s is a list", l.Reference.StringWithinTransport())
		}
		m, err := manifest.OCI1FromManifest(p)
		if err != nil {
			return nil, err
		}
		name := l.ManifestDescriptor.Annotations[ocispec.AnnotationRefName]
		stored, err := reference.ParseNamed(name)
		if err != nil {
			return nil, err
		}
		if d, ok := wanted.(reference.Digested); ok && (stored.Name() != wanted.Name() || digest.FromBytes(p) != d.Digest()) || !ok && name != wanted.String() {
			continue
		}
		again, err := layout.NewReference(dir, name)
		if err != nil {
			return nil, err
		}
		from, err := again.NewImageSource(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer from.Close()
		files := map[string]string{}
		for _, layer := range m.Layers {
			path, err := layout.GetLocalBlobPath(ctx, from, layer.Digest)
			if err != nil {
				return nil, err
			}
			if name := layer.Annotations[ocispec.AnnotationTitle]; name != "" {
				files[name] = path
			} else if name := layer.Annotations["org.cncf.model.filepath"]; name != "" {
				files[name] = path
			}
		}
		return files, nil
	}
	return nil, fmt.Errorf("no artifact %s", ref)
}

// TestArtifactStore gives models of a node to CRI-O, whose libraries find them, and all their files, by tag and digest.
func TestArtifactStore(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback})
	dir := filepath.Join(n.Dir, "crio")
	for _, b := range []*converttest.Built{
		converttest.ModelPackRaw(converttest.Files(weights(95, 5<<20+7))), converttest.DockerAIFiles(converttest.Files(weights(96, 1<<20))),
	} {
		ref := push(t, n, b)
		for _, args := range [][]string{{"prefetch", ref}, {"export", "--artifact-store", dir, ref}} {
			if out := n.Ballast(args...); out.Err != nil {
				t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
			}
		}
		named, err := reference.ParseNamed(ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, by := range []string{ref, named.Name() + "@" + b.Digest().String()} {
			files, err := crioMounts(t.Context(), dir, by)
			if err != nil || len(files) != len(b.Files) {
				t.Errorf("%s: %v, %v", by, files, err)
			}
			for name, path := range files {
				if p, err := os.ReadFile(path); err != nil || digest.FromBytes(p) != digest.FromBytes(b.Files[name].Data) {
					t.Errorf("%s: %s: %v", by, name, err)
				}
			}
		}
		if _, err := crioMounts(t.Context(), dir, named.Name()+":other"); err == nil {
			t.Errorf("%s: another tag", ref)
		}
	}
}
