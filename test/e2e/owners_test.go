package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// attributes prints mode, owner, mtime and path of everything below /model.
const attributes = `$B find /model -exec $B stat -c "%a %u %g %Y %n" {} + | $B sort -k 5`

// TestOwners pulls a tar as an ordinary image with overlayfs, and as a layer of model formats with ballast: containers
// see the same attributes, and the owner of a private file can read it.
func TestOwners(t *testing.T) {
	secret := weights(241, 2<<20)
	layer := ownedTar(t, secret)
	plain := converttest.Layer{MediaType: "application/vnd.oci.image.layer.v1.tar", Data: string(layer)}
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[%q]}}`, digest.FromBytes(layer))
	image := converttest.Spec{ConfigType: "application/vnd.oci.image.config.v1+json", Config: config, Layers: []converttest.Layer{plain}}
	models := map[string]converttest.Spec{}
	early := image
	early.ArtifactType = mediatype.CNAIManifest
	models["early"] = early
	early.Layers = []converttest.Layer{{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Data: string(converttest.Compress(layer, filetable.CodecGzip))}}
	models["early-gzip"] = early
	models["cnai"] = converttest.Spec{ArtifactType: mediatype.CNAIManifest, ConfigType: mediatype.CNAIConfig, Config: "{}",
		Layers: []converttest.Layer{{MediaType: "application/vnd.cnai.model.weight.v1.tar", Data: string(layer)}}}
	models["modelpack-zstd"] = converttest.Spec{ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.ModelPackConfig, Config: "{}",
		Layers: []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.tar+zstd", Data: string(converttest.Compress(layer, filetable.CodecZstd))}}}
	raw := converttest.At("model/secret")
	raw[mediatype.AnnotationMetadata] = fmt.Sprintf(`{"name":"secret","mode":384,"uid":1000,"gid":100,"size":%d,"mtime":%q,"typeflag":0}`, len(secret), ownedTime.Format(time.RFC3339))
	models["raw"] = converttest.Spec{ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.ModelPackConfig, Config: "{}",
		Layers: []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: string(secret), Annotations: raw}}}

	for _, show := range ways {
		t.Run(show, func(t *testing.T) {
			n := node.StartNode(t, node.Options{Config: showAs(show)})
			pull := func(snapshotter, name string, s converttest.Spec) (ref, seen string) {
				n.Registry.Push(t, "owned/"+name, "1", artifact(converttest.Make(s)))
				ref = n.Registry.Ref("owned/"+name, "1")
				mustPull(t, n, snapshotter, ref)
				out := n.RunIn(snapshotter, ref, attributes)
				if out.Err != nil {
					t.Fatalf("%s: %v: %s", name, out.Err, out.Output())
				}
				return ref, out.Stdout
			}
			_, want := pull("overlayfs", "image", image)
			if !strings.Contains(want, "600 1000 100 ") {
				t.Fatalf("the image: %s", want)
			}
			for name, s := range models {
				ref, got := pull("ballast", name, s)
				if show == "stubs" && name != "raw" && got != want {
					t.Errorf("%s: got\n%swant\n%s", name, got, want)
				}
				if line := fmt.Sprintf("600 1000 100 %d /model/secret\n", ownedTime.Unix()); show == "stubs" && !strings.Contains(got, line) {
					t.Errorf("%s: got\n%swant %s", name, got, line)
				}
				out := n.RunAs([]string{"--user", "1000:1000"}, "ballast", ref, `$B sha256sum < /model/secret`)
				if out.Err != nil || !strings.HasPrefix(out.Stdout, digest.FromBytes(secret).Encoded()) {
					t.Errorf("%s: the owner of a file: %v: %s", name, out.Err, out.Output())
				}
				if name == "raw" {
					continue
				}
				if out := n.RunAs([]string{"--user", "1000:1000"}, "ballast", ref, `$B cat /model/note`); out.Err != nil || out.Stdout != "private" {
					t.Errorf("%s: the owner of a small file: %v: %s", name, out.Err, out.Output())
				}
				if out := n.RunAs([]string{"--user", "1001:1001"}, "ballast", ref, `$B cat /model/note`); out.Err == nil {
					t.Errorf("%s: another user reads a private file: %s", name, out.Output())
				}
			}
		})
	}
}

var ownedTime = time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC)

// ownedTar is a layer with files of user 1000, one with the given content.
func ownedTar(t *testing.T, secret []byte) []byte {
	owned := tar.Header{Uid: 1000, Gid: 100, ModTime: ownedTime}
	header := func(name string, typ byte, mode int64) tar.Header {
		h := owned
		h.Name, h.Typeflag, h.Mode = name, typ, mode
		return h
	}
	link, other := header("model/link", tar.TypeSymlink, 0o777), header("model/other", tar.TypeReg, 0o644)
	link.Linkname, other.Uid, other.Gid = "note", 4_000_000_000, 0
	return storetest.Tar(t, []tar.Header{
		header("model/", tar.TypeDir, 0o750), header("model/secret", tar.TypeReg, 0o600), header("model/note", tar.TypeReg, 0o600), link, other,
		header("model/empty", tar.TypeReg, 0o400),
	}, [][]byte{nil, secret, []byte("private"), nil, bytes.Repeat([]byte("x"), 5000), nil})
}
