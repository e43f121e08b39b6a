//go:build ignore

// Command stargz serves the stargz snapshotter, so that bench can measure it. It is the library of the
// stargz project with its defaults, on a socket, as in its own daemon.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/service"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: stargz ROOT SOCKET")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "stargz:", err)
		os.Exit(1)
	}
}

// serve serves on a socket until SIGTERM. It unmounts all its mounts.
func serve(root, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s, err := service.NewStargzSnapshotterService(ctx, root, &service.Config{})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(s))
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	if err := server.Serve(l); err != nil {
		return err
	}
	return s.Close()
}
