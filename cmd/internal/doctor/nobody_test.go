package doctor

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/config"
)

// TestUserWithoutPermissions runs the doctor as a user without access to the sockets: it reports that, and does not
// advise to start what runs.
func TestUserWithoutPermissions(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() == nobody {
		socket := os.Getenv("ADMIN") // also in place of containerd's
		d := &Doctor{Config: &config.Config{Containerd: config.Containerd{Address: socket}}, Client: api.NewClient(socket)}
		d.daemon(t.Context())
		d.loaded(t.Context(), nil, "", "")
		if err := json.NewEncoder(os.Stdout).Encode(d.findings); err != nil {
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
	var findings []Finding
	if err := json.NewDecoder(strings.NewReader(string(out))).Decode(&findings); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	told := map[string]bool{}
	for _, f := range findings {
		if f.Status != OK && strings.Contains(f.Message, "permission denied") {
			told[f.Check] = f.Fix == "run as root"
		}
	}
	if !told["daemon"] || !told["containerd"] {
		t.Errorf("without permissions, the findings do not say to run as root: %+v", findings)
	}
}
