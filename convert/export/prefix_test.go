package export_test

import (
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPrefix writes models below a directory: in the file table of converted images, which have the same blobs, and in the paths
// of other forms.
func TestPrefix(t *testing.T) {
	const prefix = "models/chat"
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	for _, b := range []*converttest.Built{
		converttest.ModelPackRaw(converttest.Files(weights(4<<20 + 17))), converttest.ModelPackTarGzip(converttest.Files(weights(4<<20 + 17))),
	} {
		s.Add("org/"+b.Name, "v1", b)
		for _, form := range forms {
			t.Run(b.Name+"/"+form.name, func(t *testing.T) {
				dir, p := t.TempDir(), prefix
				write := func(tag string, o export.Options) *export.Result {
					t.Helper()
					src := fromServer(t, c, s.Host()+"/org/"+b.Name+":v1")
					res, err := export.Run(t.Context(), src, toLayout(t, dir, tag), o)
					if err != nil {
						t.Fatal(err)
					}
					return res
				}
				plain, o := write("plain", form.o), form.o
				o.Prefix = &p
				below := write("below", o)
				if below.Digest == plain.Digest {
					t.Fatal("the prefix is not part of the digest")
				}
				want := map[string]string{}
				for path, sum := range sums(read(t, dir, "plain")) {
					if form.o.Form != export.FormBallast { // paths of a file table are those in the model
						path = prefix + "/" + path
					}
					want[path] = sum
				}
				if d := cmp.Diff(sums(read(t, dir, "below")), want); d != "" {
					t.Errorf("files (got, want):\n%s", d)
				}
				if form.o.Form != export.FormBallast {
					return
				}
				l, err := layout.Open(dir, "below")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if got := fromLayout(t, l).Model.Table.Origin.Prefix; got != prefix {
					t.Errorf("the file table has the prefix %q", got)
				}
				var m ocispec.Manifest
				if err := json.Unmarshal(l.Manifest(), &m); err != nil || m.Annotations[mediatype.AnnotationPrefix] != prefix {
					t.Errorf("the manifest has %q, %v", m.Annotations, err)
				}
				if below.Sent != 0 {
					t.Errorf("%d bytes of blobs were sent again", below.Sent)
				}
				none := ""
				o.Prefix = &none
				if again := write("again", o); again.Digest != plain.Digest {
					t.Errorf("without a prefix: digest %s, want %s", again.Digest, plain.Digest)
				}
			})
		}
	}
}
