package origins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/cmd/internal/host/localgrpc"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/services/content/contentserver"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A containerd has the metadata and the content of a containerd: its own code, without its daemon.
type containerd struct{ db *metadata.DB }

// An imagesServer serves the images of a containerd, and changes their labels.
type imagesServer struct {
	imagesapi.UnimplementedImagesServer
	*containerd
}

// A namespacesServer serves the namespaces of a containerd.
type namespacesServer struct {
	namespacesapi.UnimplementedNamespacesServer
	*containerd
}

// inPods is a context with the namespace of Kubernetes.
func inPods(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, "k8s.io") }

// asked is a context with the namespace of Kubernetes as containerd sends it with its requests.
func asked(ctx context.Context) context.Context {
	return grpcmetadata.NewIncomingContext(ctx, grpcmetadata.Pairs(namespaces.GRPCHeader, "k8s.io"))
}

func startContainerd(t *testing.T) (*containerd, *grpc.ClientConn) {
	t.Helper()
	dir := t.TempDir()
	cs, err := local.NewStore(dir)
	ok(t, err)
	file, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	ok(t, err)
	c := &containerd{db: metadata.NewDB(file, cs, nil)}
	ok(t, c.db.Init(t.Context()))
	ok(t, c.db.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(t.Context(), "k8s.io", nil) }))
	s := grpc.NewServer()
	imagesapi.RegisterImagesServer(s, imagesServer{containerd: c})
	namespacesapi.RegisterNamespacesServer(s, namespacesServer{containerd: c})
	contentapi.RegisterContentServer(s, contentserver.New(c.db.ContentStore()))
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	ok(t, err)
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	conn, err := localgrpc.Dial(socket, localgrpc.Patience)
	ok(t, err)
	t.Cleanup(func() {
		ok(t, conn.Close())
		s.Stop()
		ok(t, errors.Join(<-done, file.Close()))
	})
	return c, conn
}

// List implements imagesapi.ImagesServer.
func (c imagesServer) List(ctx context.Context, _ *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	all, err := metadata.NewImageStore(c.db).List(namespaces.WithNamespace(ctx, ns))
	res := &imagesapi.ListImagesResponse{}
	for _, im := range all {
		res.Images = append(res.Images, &imagesapi.Image{Name: im.Name, Labels: im.Labels, CreatedAt: timestamppb.New(im.CreatedAt), Target: &types.Descriptor{
			MediaType: im.Target.MediaType, Digest: im.Target.Digest.String(), Size: im.Target.Size,
		}})
	}
	return res, err
}

// put writes a blob into the content store.
func (c *containerd) put(t *testing.T, p []byte) {
	t.Helper()
	desc := ocispec.Descriptor{Digest: digest.FromBytes(p), Size: int64(len(p))}
	err := content.WriteBlob(inPods(t.Context()), c.db.ContentStore(), desc.Digest.String(), bytes.NewReader(p), desc)
	if !errdefs.IsAlreadyExists(err) {
		ok(t, err)
	}
}

// Update implements imagesapi.ImagesServer.
func (c imagesServer) Update(ctx context.Context, req *imagesapi.UpdateImageRequest) (*imagesapi.UpdateImageResponse, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	im := images.Image{Name: req.Image.Name, Labels: req.Image.Labels, Target: ocispec.Descriptor{MediaType: req.Image.Target.MediaType}} // a request without a target ends containerd
	_, err = metadata.NewImageStore(c.db).Update(namespaces.WithNamespace(ctx, ns), im, req.UpdateMask.Paths...)
	return &imagesapi.UpdateImageResponse{}, errgrpc.ToGRPC(err)
}

// pull adds an image as CRI does for a pull by digest: its manifest and its blobs.
func (c *containerd) pull(t *testing.T, name string, b *converttest.Built) string {
	t.Helper()
	c.put(t, b.Manifest)
	for _, p := range b.Blobs {
		c.put(t, p)
	}
	name = pinned(name, b.Digest())
	for _, name := range []string{configOf(t, b).String(), name} { // CRI adds the ID of the image as a name
		_, err := metadata.NewImageStore(c.db).Create(inPods(t.Context()), images.Image{
			Name: name, Target: ocispec.Descriptor{MediaType: b.MediaType, Digest: b.Digest(), Size: int64(len(b.Manifest))},
		})
		if !errdefs.IsAlreadyExists(err) {
			ok(t, err)
		}
	}
	return name
}

// configOf returns the digest of the config, which is the ID of the image in CRI.
func configOf(t *testing.T, b *converttest.Built) digest.Digest {
	t.Helper()
	var m ocispec.Manifest
	ok(t, json.Unmarshal(b.Manifest, &m))
	return m.Config.Digest
}

// List implements namespacesapi.NamespacesServer.
func (c namespacesServer) List(ctx context.Context, _ *namespacesapi.ListNamespacesRequest) (*namespacesapi.ListNamespacesResponse, error) {
	res := &namespacesapi.ListNamespacesResponse{}
	return res, c.db.View(func(tx *bolt.Tx) error {
		all, err := metadata.NewNamespaceStore(tx).List(ctx)
		for _, name := range all {
			res.Namespaces = append(res.Namespaces, &namespacesapi.Namespace{Name: name})
		}
		return err
	})
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A rig is the origins of a node, with a registry that gives its models to nobody.
type rig struct {
	*Origins
	containerd *containerd
	registry   string // host
	shown      []string
	gives      map[string]bool // by name: whether the repository gives all files of the model
}

func newRig(t *testing.T) *rig {
	t.Helper()
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(closed.Close)
	upstream, err := remote.New(remote.Options{})
	ok(t, err)
	t.Cleanup(upstream.Close)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	c, conn := startContainerd(t)
	r := &rig{containerd: c, registry: strings.TrimPrefix(closed.URL, "http://")}
	r.Origins = New(Options{
		Containerd: ctrd.New(conn), Store: s, Log: slog.New(slog.DiscardHandler),
		Facade: &registry.Handler{Resolver: resolve.Resolver{Upstream: upstream}, Store: s, Origins: true},
		Show: func(_ context.Context, id string, im store.Image, names []string, private bool) error {
			r.shown = append(append(r.shown, id, fmt.Sprint("private ", private), im.Table.String()), names...)
			return nil
		},
		Fetch: func(_ context.Context, im store.Image, name string) error {
			if !r.gives[name] {
				return errdefs.ErrNotFound
			}
			return nil
		},
	})
	return r
}

// blobs has a model as an archive on this machine.
type blobs struct{ *converttest.Built }

func (b blobs) Artifact(context.Context, ocispec.Descriptor) (convert.Artifact, error) {
	return converttest.NewArtifact(b.Built), nil
}

func (b blobs) OpenBlob(digest.Digest) (*os.File, error) { return nil, errdefs.ErrNotFound }

func (b blobs) Fetch(_ context.Context, d digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(b.Blobs[d][off : off+n])), off, nil
}

// convert makes the image of a model in the store, as the facade does when the model is pulled by tag.
func (r *rig) convert(t *testing.T, name string, b *converttest.Built, private bool) store.Image {
	t.Helper()
	ref, err := resolve.ParseRef(name + ":v1")
	ok(t, err)
	i, err := r.Facade.Import(t.Context(), ref, blobs{b}, ocispec.Descriptor{}, registry.ImportOptions{Private: private})
	ok(t, err)
	_, err = i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {})
	ok(t, err)
	im, err := i.Commit(func(store.Image, remote.Ref) error { return nil })
	ok(t, errors.Join(err, i.Close()))
	return im
}

// model returns a model for whose volumes containerd makes an empty snapshot.
func model() *converttest.Built {
	return converttest.ModelPackRaw(converttest.Files([]byte("weights")))
}

// TestVolumeOfPublicModel shows a model from the repository that serves it to everybody, and keeps it
// until containerd has the image no longer.
func TestVolumeOfPublicModel(t *testing.T) {
	for _, rules := range []bool{false, true} {
		t.Run(fmt.Sprint("rules for signatures ", rules), func(t *testing.T) { testVolumeOfPublicModel(t, rules) })
	}
}

func testVolumeOfPublicModel(t *testing.T, rules bool) {
	r, b := newRig(t), model()
	if rules {
		r.Facade.Signatures = &signature.Checker{}
	}
	name := r.registry + "/team/m"
	im := r.convert(t, name, b, false)
	pulled := r.containerd.pull(t, name, b)
	ok(t, r.Volume(asked(t.Context()), b.Digest(), "7"))
	if d := cmp.Diff(r.shown, []string{"7", "private false", im.Table.String(), name}); d != "" {
		t.Errorf("shown (got, want):\n%s", d)
	}
	kept := func() []string {
		t.Helper()
		ok(t, r.ReleaseUnneeded(t.Context()))
		refs := r.Store.Catalog.Refs(modelname.OriginPrefix)
		var all []string
		for _, ref := range refs {
			all = append(append(all, ref.Name, ref.Table.String()), ref.Sources...)
		}
		return all
	}
	if d := cmp.Diff(kept(), []string{modelname.Origin(b.Digest()), im.Table.String(), name}); d != "" {
		t.Errorf("while containerd has the image (got, want):\n%s", d)
	}
	for _, name := range []string{pulled, configOf(t, b).String()} {
		ok(t, metadata.NewImageStore(r.containerd.db).Delete(inPods(t.Context()), name))
	}
	if got := kept(); got != nil {
		t.Errorf("after containerd has removed the image: %q", got)
	}
}

// TestVolumeWithPrefix shows a model in the directory that the rules of the node give to its repository, if they give the same to
// all names that containerd has for it.
func TestVolumeWithPrefix(t *testing.T) {
	r, b := newRig(t), model()
	r.Facade.Prefix = func(name string) string { return map[string]string{r.registry + "/team/placed": "models"}[name] }
	plain, placed := r.convert(t, r.registry+"/team/plain", b, false), r.convert(t, r.registry+"/team/placed", b, false)
	if plain.Table == placed.Table {
		t.Fatal("the directory is not part of the table")
	}
	r.containerd.pull(t, r.registry+"/team/placed", b)
	ok(t, r.Volume(asked(t.Context()), b.Digest(), "7"))
	if d := cmp.Diff(r.shown, []string{"7", "private false", placed.Table.String(), r.registry + "/team/placed"}); d != "" {
		t.Errorf("shown (got, want):\n%s", d)
	}
	r.containerd.pull(t, r.registry+"/team/plain", b)
	if err := r.Volume(asked(t.Context()), b.Digest(), "8"); err == nil || !strings.Contains(err.Error(), "another directory by the [[layout]] rules") {
		t.Errorf("two names with two directories: %v", err)
	}
}

// TestVolumeOfPrivateModel shows a model that callers have read with credentials by all names that containerd has for
// it, with the files of the oldest, if the repositories of all names give all files.
func TestVolumeOfPrivateModel(t *testing.T) {
	for _, tt := range []struct {
		name    string
		names   []string        // below the registry, by which containerd has it
		read    map[string]int  // by name: how many hours before containerd's image was made
		gives   map[string]bool // by name
		refused string
	}{
		{"read at the pull", []string{"a"}, map[string]int{"a": 0}, nil, ""},
		{"read later", []string{"a"}, map[string]int{"a": -48}, nil, ""},
		{"read before the pull that made the image", []string{"a"}, map[string]int{"a": 48}, nil, "it is private"},
		{"not read", []string{"a"}, nil, nil, "it is private"},
		{"read by another name", []string{"a"}, map[string]int{"b": 0}, nil, "it is private"},
		{"two names", []string{"a", "b"}, map[string]int{"a": 0, "b": 0}, map[string]bool{"b": true}, ""},
		{"a name that was not read", []string{"a", "b"}, map[string]int{"a": 0}, map[string]bool{"b": true}, "it is private"},
		{"a name that does not give the files", []string{"a", "b"}, map[string]int{"a": 0, "b": 0}, nil, "which must give it too"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, b := newRig(t), model()
			r.gives = map[string]bool{}
			at := func(name string) string { return r.registry + "/" + name }
			im := r.convert(t, at("a"), b, true)
			for n, given := range tt.gives {
				r.gives[at(n)] = given
			}
			im.Refs = []string{pinned(at("a"), b.Digest()), pinned(at("b"), b.Digest())}
			im.PrivateNames, im.Read = []string{at("a"), at("b")}, map[string]time.Time{}
			for n, hours := range tt.read {
				im.Read[at(n)] = time.Now().Add(-time.Duration(hours) * time.Hour)
			}
			ok(t, r.Store.PutImage(im))
			var names []string
			for _, n := range tt.names {
				names = append(names, at(n))
				r.containerd.pull(t, at(n), b)
			}
			err := r.Volume(asked(t.Context()), b.Digest(), "7")
			if tt.refused == "" {
				ok(t, err)
				if d := cmp.Diff(r.shown, append([]string{"7", "private true", im.Table.String()}, names...)); d != "" {
					t.Errorf("shown (got, want):\n%s", d)
				}
				kept, err := r.Store.Catalog.Ref(modelname.Origin(b.Digest()))
				ok(t, err)
				if d := cmp.Diff(kept.Sources, names[:1]); d != "" {
					t.Errorf("sources of what is kept (got, want):\n%s", d)
				}
				return
			}
			var pin *registry.PinError
			if !errors.As(err, &pin) || pin.Converted != im.Manifest || !strings.Contains(pin.Reason, tt.refused) || r.shown != nil {
				t.Errorf("got %v, shown %q; want %s with the reason %q", err, r.shown, im.Manifest, tt.refused)
			}
		})
	}
}

// TestVolumeIsBrief: a volume does not wait for a repository that hangs, and another one can have the model later.
func TestVolumeIsBrief(t *testing.T) {
	r, b := newRig(t), model()
	names := []string{r.registry + "/a", r.registry + "/b"}
	im := r.convert(t, names[0], b, true)
	im.Refs, im.PrivateNames, im.Read = nil, names, map[string]time.Time{}
	for _, n := range names {
		im.Refs, im.Read[n] = append(im.Refs, pinned(n, b.Digest())), time.Now()
		r.containerd.pull(t, n, b)
	}
	ok(t, r.Store.PutImage(im))
	r.Fetch = func(ctx context.Context, _ store.Image, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := r.Volume(asked(t.Context()), b.Digest(), "7"); !errdefs.IsUnavailable(err) || r.shown != nil {
		t.Errorf("while a repository hangs: %v, shown %q", err, r.shown)
	}
	r.Fetch = func(context.Context, store.Image, string) error { return nil }
	ok(t, r.Volume(asked(t.Context()), b.Digest(), "8"))
}

// TestVolumeRefused returns the digest to use instead, and the reason, for models that must not be shown.
func TestVolumeRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, r *rig, b *converttest.Built)
		reason string
	}{
		{"by configuration", func(_ *testing.T, r *rig, _ *converttest.Built) { r.Off = true }, "facade.origin_digests is off"},
		{"private", nil, "it is private"},
		{"shared config", func(t *testing.T, r *rig, b *converttest.Built) {
			other := *b
			other.Manifest = bytes.Replace(b.Manifest, []byte("{"), []byte("{ "), 1)
			r.containerd.pull(t, "other.example/team/m", &other)
		}, "have the same config"},
		{"unknown name", func(t *testing.T, r *rig, b *converttest.Built) {
			ok(t, metadata.NewImageStore(r.containerd.db).Delete(inPods(t.Context()), pinned(r.registry+"/team/m", b.Digest())))
		}, "containerd does not say where it is from"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, b := newRig(t), model()
			name := r.registry + "/team/m"
			im := r.convert(t, name, b, tt.name == "private")
			r.containerd.pull(t, name, b)
			if tt.change != nil {
				tt.change(t, r, b)
			}
			err := r.Volume(asked(t.Context()), b.Digest(), "7")
			var pin *registry.PinError
			if !errors.As(err, &pin) || pin.Converted != im.Manifest || !strings.Contains(pin.Reason, tt.reason) {
				t.Errorf("got %v, want %s with the reason %q", err, im.Manifest, tt.reason)
			}
			if r.shown != nil {
				t.Errorf("shown: %q", r.shown)
			}
		})
	}
}

// TestBareSnapshotRefused refuses a snapshot without layers only in a namespace that has a model whose
// volume would be an empty directory.
func TestBareSnapshotRefused(t *testing.T) {
	r := newRig(t)
	layer := []byte("a layer")
	config := []byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["` + digest.FromBytes(layer).String() + `"]}}`)
	ordinary := &converttest.Built{MediaType: mediatype.OCIManifest, Blobs: map[digest.Digest][]byte{digest.FromBytes(config): config}}
	var err error
	ordinary.Manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer), Size: int64(len(layer))}},
	})
	ok(t, err)
	r.containerd.pull(t, "docker.io/library/busybox", ordinary)
	if err := r.Bare(asked(t.Context())); err != nil {
		t.Errorf("with an ordinary image: %v", err)
	}
	r.containerd.pull(t, "ghcr.io/team/m", model())
	err = r.Bare(asked(t.Context()))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ghcr.io/team/m") || !strings.Contains(err.Error(), "or another image with the same content") {
		t.Errorf("with a model: got %v, want ErrFailedPrecondition with its name", err)
	}
	r.containerd.pull(t, "ghcr.io/team/another", model())
	err = r.Bare(asked(t.Context()))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "one of 2 such images") || !strings.Contains(err.Error(), "ghcr.io/team/m@") || !strings.Contains(err.Error(), "ghcr.io/team/another@") {
		t.Errorf("with two models: got %v, want ErrFailedPrecondition with both names", err)
	}
	if err := r.Bare(t.Context()); err != nil {
		t.Errorf("without a namespace: %v", err)
	}
}
