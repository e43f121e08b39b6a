package doctor

import (
	"encoding/json"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// TestUserWithoutPermissions runs the doctor as a user without access to the sockets: it reports that, and nothing
// that it can only guess.
func TestUserWithoutPermissions(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() == nobody {
		socket := os.Getenv("ADMIN") // also in place of containerd's
		d := &Doctor{Config: &config.Config{Containerd: config.Containerd{Address: socket}}, Client: wire.NewClient(socket)}
		if err := json.NewEncoder(os.Stdout).Encode(d.Run(t.Context())); err != nil {
			t.Fatal(err)
		}
		return
	}
	n := newNode(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestUserWithoutPermissions$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "ADMIN="+n.doctor.Config.AdminAddress)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var findings node.Findings
	if err := json.NewDecoder(strings.NewReader(string(out))).Decode(&findings); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if len(findings) != 1 || findings[0].Status != node.Fail || findings[0].Fix != "run as root" {
		t.Errorf("without permissions, the findings are not one that says to run as root: %+v", findings)
	}
}
