package node

import (
	"context"
	"errors"
	"fmt"

	leases "github.com/containerd/containerd/api/services/leases/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
)

// connect returns a connection to containerd, made on first use.
func (n *Node) connect() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// API calls f with a connection to containerd and a context for calls in a namespace. A start of ctr takes a tenth of a
// second of a processor, so what every test does uses this.
func (n *Node) API(namespace string, f func(context.Context, grpc.ClientConnInterface) error) error {
	conn, err := n.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "containerd-namespace", namespace), limit)
	defer cancel()
	return f(ctx, conn)
}

// answers returns nil if containerd does.
func (n *Node) answers() error {
	return n.API("default", func(ctx context.Context, c grpc.ClientConnInterface) error {
		_, err := version.NewVersionClient(c).Version(ctx, &emptypb.Empty{})
		return err
	})
}

// reaches returns nil if containerd reaches ballastd. Listing does not if containerd has no snapshots, but making one does.
func (n *Node) reaches() error {
	return n.API("default", func(ctx context.Context, c grpc.ClientConnInterface) error {
		api := snapshots.NewSnapshotsClient(c)
		_, made := api.Prepare(ctx, &snapshots.PrepareSnapshotRequest{Snapshotter: "ballast", Key: "is-ready"})
		_, gone := api.Remove(ctx, &snapshots.RemoveSnapshotRequest{Snapshotter: "ballast", Key: "is-ready"})
		return errors.Join(made, gone)
	})
}

// tasks returns the identifiers of the containers that run in a namespace.
func (n *Node) tasks(namespace string) (ids []string, err error) {
	err = n.API(namespace, func(ctx context.Context, c grpc.ClientConnInterface) error {
		all, err := tasks.NewTasksClient(c).List(ctx, &tasks.ListTasksRequest{})
		for _, t := range all.GetTasks() {
			ids = append(ids, t.ID)
		}
		return err
	})
	return ids, err
}

// collected waits for a garbage collection of containerd.
func (n *Node) collected() error {
	return n.API("default", func(ctx context.Context, c grpc.ClientConnInterface) error {
		api := leases.NewLeasesClient(c)
		made, err := api.Create(ctx, &leases.CreateRequest{ID: fmt.Sprint("collect", containers.Add(1))})
		if err == nil {
			_, err = api.Delete(ctx, &leases.DeleteRequest{ID: made.Lease.ID, Sync: true})
		}
		return err
	})
}
