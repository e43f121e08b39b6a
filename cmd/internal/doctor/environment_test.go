package doctor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
)

// listenEnv has the helper process of TestEnvironmentOfContainerd listen at a socket.
const listenEnv = "BALLAST_TEST_LISTEN"

// TestListener is no test, but the helper process.
func TestListener(*testing.T) {
	if at := os.Getenv(listenEnv); at != "" {
		l, err := net.Listen("unix", at)
		if err != nil {
			panic(err)
		}
		fmt.Println("listening")
		for err == nil {
			_, err = l.Accept()
		}
	}
}

// listener starts a process with an environment that listens at a socket, and returns the socket.
func listener(t *testing.T, name string, env ...string) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), name)
	cmd := exec.Command(os.Args[0], "-test.run=^TestListener$")
	cmd.Env = append(env, listenEnv+"="+at)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestEnvironmentOfContainerd: what containerd has in its environment and ballastd has not is named, without its value.
func TestEnvironmentOfContainerd(t *testing.T) {
	containerd := listener(t, "containerd.sock", "HTTPS_PROXY=http://u:s3cret@proxy.example", "NO_PROXY=.local")
	for _, tt := range []struct {
		env  []string
		want string
	}{
		{nil, "containerd has HTTPS_PROXY, NO_PROXY in its environment"},
		{[]string{"https_proxy=http://other.example"}, "containerd has NO_PROXY in its environment"},
		{[]string{"HTTPS_PROXY=x", "NO_PROXY=y"}, ""},
	} {
		cfg := config.Default()
		cfg.AdminAddress = listener(t, "admin.sock", tt.env...)
		d := &Doctor{Config: cfg, Node: &node.View{Host: node.Host{Root: "/"}, Distro: node.Distro{Socket: containerd}}}
		d.environment(t.Context(), new(wire.Health))
		if got := fmt.Sprint(d.Findings); tt.want == "" && len(d.Findings) > 0 || !strings.Contains(got, tt.want) || strings.Contains(got, "s3cret") {
			t.Errorf("%q: got %s", tt.env, got)
		}
	}
}
