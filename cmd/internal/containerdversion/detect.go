package containerdversion

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	versionservice "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// detectTimeout limits the time in which containerd returns its version.
const detectTimeout = 5 * time.Second

// Find returns the version in said, or the result of Detect if said is empty.
func Find(ctx context.Context, said, socket string) (Version, error) {
	if said != "" {
		return Parse(said)
	}
	return Detect(ctx, socket)
}

// Detect returns the version of the containerd that serves at a socket, otherwise of the program
// containerd. It returns errdefs.ErrNotFound if there is neither, or neither returns a version.
func Detect(ctx context.Context, socket string) (Version, error) {
	ctx, cancel := context.WithTimeout(ctx, detectTimeout)
	defer cancel()
	v, err := Running(ctx, socket)
	if err == nil {
		return v, nil
	}
	out, errProgram := exec.CommandContext(ctx, "containerd", "--version").Output()
	if errProgram != nil {
		return Version{}, fmt.Errorf("%w, and containerd --version: %w: %w", err, errProgram, errdefs.ErrNotFound)
	}
	// containerd github.com/containerd/containerd/v2 2.3.7 <revision>
	if words := strings.Fields(string(out)); len(words) > 2 {
		if v, err := Parse(words[2]); err == nil {
			return v, nil
		}
	}
	return Version{}, fmt.Errorf("containerd --version says %q: %w", out, errdefs.ErrNotFound)
}

// Running returns the version of the containerd that serves at a socket.
func Running(ctx context.Context, socket string) (Version, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Version{}, err
	}
	defer conn.Close()
	r, err := versionservice.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	if err != nil {
		return Version{}, fmt.Errorf("ask containerd at %s: %w", socket, err)
	}
	return Parse(r.Version)
}
