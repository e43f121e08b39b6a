package ctrd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/host/localgrpc"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/leases"
	leasesproxy "github.com/containerd/containerd/v2/core/leases/proxy"
	"github.com/containerd/containerd/v2/core/mount"
	mountproxy "github.com/containerd/containerd/v2/core/mount/proxy"
	"github.com/containerd/containerd/v2/core/snapshots"
	snapshotsproxy "github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Kubernetes is the namespace of CRI's images and containers.
const Kubernetes = "k8s.io"

// A Client asks the containerd at the other end of a connection.
type Client struct {
	conn    *grpc.ClientConn
	Content content.Store
	Leases  leases.Manager
}

// Dial returns a client of the containerd at a socket; see localgrpc.Dial.
func Dial(socket string, patience time.Duration) (*Client, error) {
	conn, err := localgrpc.Dial(socket, patience)
	if err != nil {
		return nil, err
	}
	return New(conn), nil
}

// New returns a client with a connection, which it closes.
func New(conn *grpc.ClientConn) *Client {
	return &Client{conn: conn, Content: contentproxy.NewContentStore(conn), Leases: leasesproxy.NewLeaseManager(leasesapi.NewLeasesClient(conn))}
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Conn returns the connection, for a service that is proxied or of CRI.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Version returns the version of containerd, such as "v2.4.2".
func (c *Client) Version(ctx context.Context) (string, error) {
	about, err := versionapi.NewVersionClient(c.conn).Version(ctx, &emptypb.Empty{})
	return about.GetVersion(), errgrpc.ToNative(err)
}

// plugins returns the plugins that pass filters of containerd; all without any.
func (c *Client) plugins(ctx context.Context, filters ...string) ([]*introspection.Plugin, error) {
	res, err := introspection.NewIntrospectionClient(c.conn).Plugins(ctx, &introspection.PluginsRequest{Filters: filters})
	return res.GetPlugins(), errgrpc.ToNative(err)
}

// Features returns the features of the default runtime of containers, or nil if they are unknown.
func (c *Client) Features(ctx context.Context) (*features.Features, error) {
	options, err := anypb.New(&types.RuntimeRequest{RuntimePath: defaults.DefaultRuntime})
	if err != nil {
		return nil, err
	}
	res, err := introspection.NewIntrospectionClient(c.conn).PluginInfo(ctx, &introspection.PluginInfoRequest{
		Type: "io.containerd.runtime.v2", ID: "task", Options: options,
	})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	var info types.RuntimeInfo
	if err := res.Extra.UnmarshalTo(&info); err != nil || info.Features == nil {
		return nil, err
	}
	var f features.Features
	return &f, json.Unmarshal(info.Features.Value, &f)
}

// SnapshotterAt returns the name of the proxy snapshotter at a socket, or "" if containerd has none.
func (c *Client) SnapshotterAt(ctx context.Context, socket string) (string, error) {
	all, err := c.plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", fmt.Errorf("plugins of containerd: %w", err)
	}
	for _, p := range all {
		if p.InitErr == nil && strings.TrimPrefix(p.Exports["address"], "unix://") == socket {
			return p.ID, nil
		}
	}
	return "", nil
}

// EachNamespace calls f for each namespace of containerd, with a context for it.
func (c *Client) EachNamespace(ctx context.Context, f func(ctx context.Context, ns string) error) error {
	all, err := namespacesapi.NewNamespacesClient(c.conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return fmt.Errorf("namespaces of containerd: %w", errgrpc.ToNative(err))
	}
	for _, ns := range all.Namespaces {
		if err := f(namespaces.WithNamespace(ctx, ns.Name), ns.Name); err != nil {
			return err
		}
	}
	return nil
}

// Containers returns the containers that pass filters; all without any.
func (c *Client) Containers(ctx context.Context, filters ...string) ([]*containersapi.Container, error) {
	list, err := containersapi.NewContainersClient(c.conn).List(ctx, &containersapi.ListContainersRequest{Filters: filters})
	if err != nil {
		return nil, fmt.Errorf("containers of containerd: %w", errgrpc.ToNative(err))
	}
	return list.Containers, nil
}

// Container returns a container, or errdefs.ErrNotFound.
func (c *Client) Container(ctx context.Context, id string) (*containersapi.Container, error) {
	got, err := containersapi.NewContainersClient(c.conn).Get(ctx, &containersapi.GetContainerRequest{ID: id})
	return got.GetContainer(), errgrpc.ToNative(err)
}

// RemoveImage removes an image and, before it returns, what only this image needs. One that does not exist is no error.
func (c *Client) RemoveImage(ctx context.Context, name string) error {
	_, err := imagesapi.NewImagesClient(c.conn).Delete(ctx, &imagesapi.DeleteImageRequest{Name: name, Sync: true})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Snapshots returns the snapshots of a snapshotter, as containerd has recorded them.
func (c *Client) Snapshots(snapshotter string) snapshots.Snapshotter {
	return snapshotsproxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(c.conn), snapshotter)
}

// EachLease calls f for the leases that hold snapshots with chosen keys, with these.
func (c *Client) EachLease(ctx context.Context, snapshotter string, chosen func(key string) bool, f func(l leases.Lease, held []leases.Resource) error) error {
	list, err := c.Leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range list {
		all, err := c.Leases.ListResources(ctx, l)
		if errdefs.IsNotFound(err) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		var held []leases.Resource
		for _, r := range all {
			if r.Type == "snapshots/"+snapshotter && chosen(r.ID) {
				held = append(held, r)
			}
		}
		if len(held) == 0 {
			continue
		}
		if err := f(l, held); err != nil {
			return err
		}
	}
	return nil
}

// Activated returns what the mount manager of containerd has mounted; nothing before containerd 2.2, which has none.
func (c *Client) Activated(ctx context.Context) ([]mount.ActivationInfo, error) {
	all, err := mountproxy.NewMountManager(c.conn).List(ctx)
	if errdefs.IsNotImplemented(err) {
		return nil, nil
	}
	return all, err
}

// Collect has containerd remove what nothing needs, before it returns.
func (c *Client) Collect(ctx context.Context) error {
	l, err := c.Leases.Create(ctx, leases.WithID("ballast-"+rand.Text()))
	if err != nil {
		return err
	}
	return c.Leases.Delete(ctx, l, leases.SynchronousDelete)
}
