package differ

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	"github.com/containerd/containerd/v2/contrib/diffservice"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/services/content/contentserver"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of the differ mount; run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const namespace = "k8s.io"

// A node has containerd's content store, with its labels and namespaces, behind a socket, the store,
// the snapshotter, and the differ behind another socket.
type node struct {
	ctx     context.Context
	content content.Store // containerd's own side
	store   *store.Store
	snap    *snapshotter.Snapshotter
	differ  *Differ
	applier diff.Applier // as containerd sees the differ
	log     *bytes.Buffer
	socket  string // of the content store

	reads   atomic.Int64   // requests for content
	differs []diff.Applier // in the order of containerd's diff service

	mu       sync.Mutex
	asked    []Repository // the arguments of Upstream
	upstream *storetest.Fetcher
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{ctx: namespaces.WithNamespace(t.Context(), namespace), log: new(bytes.Buffer), upstream: storetest.NewFetcher()}
	db, err := bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, db)
	cs, err := local.NewStore(filepath.Join(dir, "content"))
	if err != nil {
		t.Fatal(err)
	}
	n.content = metadata.NewDB(db, cs, nil).ContentStore()

	counted := grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if info.FullMethod == "/containerd.services.content.v1.Content/Read" {
			n.reads.Add(1)
		}
		return handle(srv, s)
	})
	socket := serve(t, filepath.Join(dir, "containerd.sock"), func(s *grpc.Server) {
		contentapi.RegisterContentServer(s, contentserver.New(n.content))
		diffapi.RegisterDiffServer(s, diffservice.FromApplierAndComparer(n, nil))
	}, counted)
	n.socket = socket
	conn := connect(t, socket)
	closeAtEnd(t, conn)
	if n.store, err = store.Open(filepath.Join(dir, "store"), store.Options{Reserve: 1}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, n.store)
	if n.snap, err = snapshotter.New(filepath.Join(dir, "snapshots"), n.store, snapshotter.Options{}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, n.snap)
	n.differ = New(Options{
		Content: contentproxy.NewContentStore(conn), Plain: DiffService(conn), Snapshotter: n.snap, Store: n.store, Upstream: n.fetchers,
		Log: slog.New(slog.NewTextHandler(n.log, nil)),
	})
	socket = serve(t, filepath.Join(dir, "diff.sock"), func(s *grpc.Server) {
		diffapi.RegisterDiffServer(s, diffservice.FromApplierAndComparer(n.differ, n.differ))
	})
	conn = connect(t, socket)
	closeAtEnd(t, conn)
	n.applier = DiffService(conn)
	n.differs = []diff.Applier{n.applier, apply.NewFileSystemApplier(n.content)} // the order of the differ "walking"
	return n
}

// Apply does what containerd's diff service does: it asks the differs of its configuration in order.
// https://github.com/containerd/containerd/blob/v2.4.2/plugins/services/diff/local.go
func (n *node) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (res ocispec.Descriptor, err error) {
	ns, _ := namespaces.Namespace(ctx)
	for _, d := range n.differs {
		res, err = d.Apply(namespaces.WithNamespace(ctx, ns), desc, mounts, opts...)
		if !errdefs.IsNotImplemented(err) {
			break
		}
	}
	return res, err
}

func connect(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func closeAtEnd(t *testing.T, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// serve serves on a unix socket until the test ends.
func serve(t *testing.T, socket string, register func(*grpc.Server), o ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	register(s)
	var g errgroup.Group
	g.Go(func() error { return s.Serve(l) })
	t.Cleanup(func() {
		s.Stop()
		if err := g.Wait(); err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it served
			t.Error(err)
		}
	})
	return socket
}

func (n *node) fetchers(_ digest.Digest, sources []Repository) []transfer.Source {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = sources
	return storetest.From(n.upstream)
}

// put writes a blob into containerd's content store.
func (n *node) put(t *testing.T, mediaType string, p []byte, labels map[string]string) ocispec.Descriptor {
	t.Helper()
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}
	err := content.WriteBlob(n.ctx, n.content, desc.Digest.String(), bytes.NewReader(p), desc, content.WithLabels(labels))
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

// prepare makes an active snapshot.
func (n *node) prepare(t *testing.T, key, parent string) []mount.Mount {
	t.Helper()
	mounts, err := n.snap.Prepare(n.ctx, key, parent)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

// apply unpacks a layer as containerd does, and commits it with the name of its diffID.
func (n *node) apply(t *testing.T, parent string, desc ocispec.Descriptor) ocispec.Descriptor {
	t.Helper()
	key := "extract " + desc.Digest.String()
	got, err := n.applier.Apply(n.ctx, desc, n.prepare(t, key, parent))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.snap.Commit(n.ctx, got.Digest.String(), key); err != nil {
		t.Fatal(err)
	}
	return got
}

// files returns the regular files of a committed snapshot, with their content.
func (n *node) files(t *testing.T, name string) map[string]string {
	t.Helper()
	mounts, err := n.snap.View(n.ctx, fmt.Sprint("view", rand.Int()), name)
	if err != nil {
		t.Fatal(err)
	}
	dir := n.mount(t, mounts)
	out := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		p, err := os.ReadFile(path)
		rel, rerr := filepath.Rel(dir, path)
		out[rel] = string(p)
		return errors.Join(err, rerr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mount mounts at a new directory until the test ends.
func (n *node) mount(t *testing.T, mounts []mount.Mount) string {
	t.Helper()
	dir := t.TempDir()
	if err := mount.All(mounts, dir); err != nil {
		t.Fatalf("mount %v: %v", mounts, err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// encode returns a table of files, each of which is a blob, sorted by name.
func encode(t *testing.T, names []string, contents ...[]byte) []byte {
	t.Helper()
	b := storetest.NewBuilder("origin")
	for i, p := range contents {
		b.Raw(names[i], p, 0o644)
	}
	p, err := b.Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tarOf returns a tar; a name that ends in a slash is a directory.
func tarOf(t *testing.T, entries ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e[0], Mode: 0o644, Size: int64(len(e[1])), ModTime: time.Unix(1, 0), Typeflag: tar.TypeReg}
		if e[0][len(e[0])-1] == '/' {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
