package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRI is a client of containerd's CRI plugin, like the kubelet.
type CRI struct {
	Runtime cri.RuntimeServiceClient
	Images  cri.ImageServiceClient

	// Annotations and Labels are those of every pod.
	Annotations, Labels map[string]string

	node *Node
	pods int
}

// CRI returns a client of the node's containerd.
func (n *Node) CRI(t TB) *CRI {
	t.Helper()
	conn, err := n.connect()
	if err != nil {
		t.Fatalf("connect to CRI: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &CRI{Runtime: cri.NewRuntimeServiceClient(conn), Images: cri.NewImageServiceClient(conn), node: n}
}

// Ready returns nil if the CRI plugin is initialized.
func (c *CRI) Ready() error {
	ctx, cancel := criContext()
	defer cancel()
	_, err := c.Runtime.Version(ctx, &cri.VersionRequest{})
	return err
}

// criTimeout is the longest time of one call. It only ends a call that hangs: a busy machine may need minutes.
const criTimeout = 8 * time.Minute

func criContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), criTimeout)
}

// Pod is a running sandbox.
type Pod struct {
	ID     string
	config *cri.PodSandboxConfig
	cri    *CRI
	names  int
}

// podConfig returns the configuration of a new pod in the host's network.
func (c *CRI) podConfig() *cri.PodSandboxConfig {
	c.pods++
	name := fmt.Sprintf("pod%d", c.pods)
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		LogDirectory: filepath.Join(c.node.Dir, "logs", name),
		Annotations:  c.Annotations,
		Labels:       c.Labels,
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
}

// Pull pulls an image for pods with a runtime handler and returns its ID. An empty handler means
// the default runtime.
func (c *CRI) Pull(ref, handler string) (string, error) { return c.PullAs(ref, handler, nil) }

// PullAs is Pull with the credentials of a pull secret. If the pull fails, PullAs collects, as
// Node.Pull does.
func (c *CRI) PullAs(ref, handler string, auth *cri.AuthConfig) (string, error) {
	if auth != nil {
		host, _, _ := strings.Cut(ref, "/")
		Belongs(auth.Password, c.node.addressOf(host))
	}
	ctx, cancel := criContext()
	defer cancel()
	resp, err := c.Images.PullImage(ctx, &cri.PullImageRequest{
		Auth:          auth,
		Image:         &cri.ImageSpec{Image: ref, UserSpecifiedImage: ref, RuntimeHandler: handler},
		SandboxConfig: c.podConfig(),
	})
	if err != nil {
		c.node.Collect()
	}
	return resp.GetImageRef(), err
}

// RunPod starts a pod; the clean-up removes it.
func (c *CRI) RunPod(t TB, handler string) *Pod {
	t.Helper()
	return c.runPod(t, c.podConfig(), handler)
}

func (c *CRI) runPod(t TB, config *cri.PodSandboxConfig, handler string) *Pod {
	t.Helper()
	ctx, cancel := criContext()
	defer cancel()
	p := &Pod{config: config, cri: c}
	resp, err := c.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler})
	if err != nil {
		t.Fatalf("run pod: %v", err)
	}
	p.ID = resp.PodSandboxId
	t.Cleanup(func() {
		if err := p.Remove(); err != nil {
			t.Errorf("remove pod: %v", err)
		}
	})
	return p
}

// Remove stops and removes the pod. It does nothing if the pod is already removed or containerd
// does not run.
func (p *Pod) Remove() error {
	if p.ID == "" || !p.cri.node.Containerd.Running() {
		return nil
	}
	ctx, cancel := criContext()
	defer cancel()
	if _, err := p.cri.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return err
	}
	_, err := p.cri.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID})
	p.ID = ""
	return err
}

// ImageMount is an image volume.
type ImageMount struct {
	Image   string // as returned by Pull
	Path    string // in the container
	SubPath string // in the image; empty means the whole image
}

// Run starts a container in the pod and returns its ID. The image must be pulled.
func (p *Pod) Run(image string, mounts ...ImageMount) (string, error) {
	ctx, cancel := criContext()
	defer cancel()
	p.names++
	name := fmt.Sprintf("c%d", p.names)
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: image},
		LogPath:  name + ".log",
		Linux:    &cri.LinuxContainerConfig{},
	}
	for _, m := range mounts {
		config.Mounts = append(config.Mounts, &cri.Mount{
			ContainerPath: m.Path, Readonly: true,
			Image: &cri.ImageSpec{Image: m.Image}, ImageSubPath: m.SubPath,
		})
	}
	p.mapUsers(config)
	c, err := p.cri.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.config})
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	if _, err := p.cri.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return "", fmt.Errorf("start container: %w", err)
	}
	return c.ContainerId, nil
}

// Exec runs a command in a container and returns its output.
func (c *CRI) Exec(container string, argv ...string) (string, error) {
	ctx, cancel := criContext()
	defer cancel()
	resp, err := c.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container, Cmd: argv, Timeout: int64(criTimeout.Seconds())})
	if err != nil {
		return "", err
	}
	if resp.ExitCode != 0 {
		return string(resp.Stdout), fmt.Errorf("%s: exit code %d: %s", strings.Join(argv, " "), resp.ExitCode, resp.Stderr)
	}
	return string(resp.Stdout), nil
}
