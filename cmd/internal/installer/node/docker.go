package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/containerd/errdefs"
)

const (
	dockerSocket = "/run/docker.sock"

	// DockerMajor is the first version of Docker Engine whose new installations store images in containerd.
	DockerMajor = 29

	maxDocker = 1 << 20 // limits an answer that is read, in bytes
)

// Docker is what the Docker Engine of a node says of itself.
// https://docs.docker.com/reference/api/engine/version/v1.52/#tag/System/operation/SystemInfo
type Docker struct {
	Version    string `json:"ServerVersion"`
	Driver     string
	Status     [][2]string `json:"DriverStatus"`
	Containers int         // of this storage driver, also those that are stopped
	Running    int         `json:"ContainersRunning"`
	Containerd struct{ Address string }
}

// Docker asks the Docker Engine of the node.
func (h Host) Docker(ctx context.Context) (*Docker, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	socket, err := h.Follow(dockerSocket)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("Docker Engine does not answer at %s: %w", dockerSocket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("Docker Engine at %s answers %s: %w", dockerSocket, resp.Status, errdefs.ErrUnavailable)
	}
	d := &Docker{}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxDocker)).Decode(d); err != nil {
		return nil, fmt.Errorf("the answer of Docker Engine at %s: %w", dockerSocket, err)
	}
	return d, nil
}

// Images reports whether the images are in containerd, and not in a store of Docker's own.
func (d *Docker) Images() bool {
	return slices.ContainsFunc(d.Status, func(s [2]string) bool { return s[1] == "io.containerd.snapshotter.v1" })
}

// TooOld reports whether the version is known and before DockerMajor.
func (d *Docker) TooOld() bool {
	major, _, _ := strings.Cut(d.Version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < DockerMajor
}
