package setup

import (
	"context"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/ballast-dev/ballast/cmd/internal/unpacked"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// askTimeout limits the time of a request to containerd or ballastd.
const askTimeout = 5 * time.Second

// labelPinned is the label that CRI gives to images that the kubelet must not remove.
const labelPinned = "io.cri-containerd.pinned"

// kubernetes is the namespace of Kubernetes' images and containers in containerd.
const kubernetes = "k8s.io"

// running is the state of the daemons on a host.
type running struct {
	daemon     bool // ballastd answers
	containerd bool // containerd answers
	loaded     bool // containerd has ballast's plugins

	version string // of containerd, "" if it does not answer

	pinned map[string]bool // images of Kubernetes that the kubelet does not remove
	used   []string        // images used by Kubernetes containers
}

// ask requests the state of the daemons of a host. A daemon that does not answer counts as not
// running.
func (v *view) ask(ctx context.Context) *running {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r := &running{daemon: v.daemonAnswers(ctx), pinned: map[string]bool{}}
	conn, err := v.dial()
	if err != nil {
		return r
	}
	defer conn.Close()
	plugins, err := introspection.NewIntrospectionClient(conn).Plugins(ctx, &introspection.PluginsRequest{})
	if err != nil {
		return r
	}
	r.containerd = true
	if about, err := versionapi.NewVersionClient(conn).Version(ctx, &emptypb.Empty{}); err == nil {
		r.version = about.Version
	}
	for _, p := range plugins.Plugins {
		r.loaded = r.loaded || p.Type == "io.containerd.snapshotter.v1" && p.ID == snippet.Snapshotter
	}
	ctx = namespaces.WithNamespace(ctx, kubernetes)
	images, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err == nil {
		for _, im := range images.Images {
			if im.Labels[labelPinned] == "pinned" {
				r.pinned[im.Name] = true
			}
		}
	}
	containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
	if err == nil {
		for _, c := range containers.Containers {
			r.used = append(r.used, c.Image)
		}
	}
	r.used = sorted(r.used)
	return r
}

// daemonAnswers reports whether ballastd runs.
func (v *view) daemonAnswers(ctx context.Context) bool {
	socket, err := v.follow(v.config.AdminAddress)
	if err != nil {
		return false
	}
	c := api.NewClient(socket)
	defer c.Close()
	_, err = c.Version(ctx)
	return err == nil
}

// dial returns a connection to containerd, which connects on first use.
func (v *view) dial() (*grpc.ClientConn, error) {
	socket, err := v.follow(v.distro.socket)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// allNamespaces calls f for each namespace of containerd.
func allNamespaces(ctx context.Context, conn *grpc.ClientConn, f func(ctx context.Context, ns string) error) error {
	all, err := namespacesapi.NewNamespacesClient(conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return err
	}
	for _, ns := range all.Namespaces {
		if err := f(namespaces.WithNamespace(ctx, ns.Name), ns.Name); err != nil {
			return err
		}
	}
	return nil
}

// users returns the containers that use ballast, for their root file system or an image volume, as
// "namespace/id".
func users(ctx context.Context, conn *grpc.ClientConn) ([]string, error) {
	var found []string
	err := allNamespaces(ctx, conn, func(ctx context.Context, ns string) error {
		containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		own := map[string]bool{} // snapshots of containers
		for _, c := range containers.Containers {
			if c.Snapshotter == snippet.Snapshotter {
				own[c.SnapshotKey] = true
				found = append(found, ns+"/"+c.ID)
			}
		}
		all := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), snippet.Snapshotter)
		return all.Walk(ctx, func(_ context.Context, s snapshots.Info) error {
			if s.Kind != snapshots.KindCommitted && !own[s.Name] {
				found = append(found, ns+": "+s.Name) // an image volume, or a manual mount
			}
			return nil
		})
	})
	return found, err
}

// reconnectTimeout limits the time until containerd connects again to a daemon that was away. Between two attempts it
// waits for some seconds, and answers what is asked meanwhile with the error of the last one.
const reconnectTimeout = 15 * time.Second

// usersOf is users of a daemon that answers: it asks again while containerd is not connected to it.
func (r *running) usersOf(ctx context.Context, conn *grpc.ClientConn) (found []string, err error) {
	ask := func(ctx context.Context) (err error) {
		found, err = users(ctx, conn)
		return err
	}
	if !r.daemon {
		err = ask(ctx)
	} else {
		err = until(ctx, reconnectTimeout, ask)
	}
	return found, err
}

// removeImages removes images that were unpacked into ballast from all namespaces.
func (v *view) removeImages(ctx context.Context) error {
	conn, err := v.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return allNamespaces(ctx, conn, func(ctx context.Context, _ string) error {
		names, err := unpacked.Images(ctx, conn, snippet.Snapshotter, func(context.Context, string) (bool, error) { return true, nil })
		if err != nil {
			return err
		}
		for _, n := range names {
			if _, err := imagesapi.NewImagesClient(conn).Delete(ctx, &imagesapi.DeleteImageRequest{Name: n, Sync: true}); err != nil {
				return err
			}
		}
		return nil
	})
}
