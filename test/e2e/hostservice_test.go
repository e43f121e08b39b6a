package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/contrib/systemd"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestHostService follows contrib/docs/host.md for a service of an ordinary user with mounts of its own: it
// reads its model after it is started again, after a restart of the machine while no registry answers, and
// while ballastd is stopped.
func TestHostService(t *testing.T) {
	page, err := os.ReadFile("../../contrib/docs/host.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```ini\n(.*?)```").FindAllSubmatch(page, -1)
	if len(found) != 2 {
		t.Fatalf("the page has %d units, want that of the mount and a drop-in", len(found))
	}
	n := node.StartNode(t, node.Options{})
	want := weights(133, 8<<20)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(want)))
	g := startGuest(t, n, "", "")
	const dir, unit, mount = "/var/lib/models/m", "server.service", "smollm2.service"
	g.ballast("prefetch", ref)
	g.must("mkdir", "-p", dir)
	output := fmt.Sprintf("[Service]\nStandardOutput=append:%s\nStandardError=inherit\n", g.log)
	here := strings.NewReplacer("docker.io/ai/smollm2", ref, "/srv/models/smollm2", dir, "=ballast ", "="+node.Binary(t, "ballast")+" ")
	g.write("units/"+mount, here.Replace(string(found[0][1]))+output)
	g.write("units/"+unit+".d/model.conf", string(found[1][1]))
	g.write("units/"+unit, output+fmt.Sprintf("User=daemon\nProtectSystem=strict\nPrivateMounts=yes\n"+
		"ExecStart=/bin/sh -c 'echo It reads. $(sha256sum %s/model.gguf) && exec sleep infinity'\n", dir))
	g.ok(os.Symlink("../"+unit, filepath.Join(g.dir, "units/multi-user.target.wants", unit)))
	read := fmt.Sprintf("It reads. %x %s/model.gguf\n", sha256.Sum256(want), dir)
	awaitRead := func(times int) {
		t.Helper()
		waitFor(t, "the service to read", func() error {
			p, err := os.ReadFile(g.log)
			if got := strings.Count(string(p), read); err == nil && got != times {
				err = fmt.Errorf("it has read its model %d times of %d", got, times)
			}
			return err
		})
	}

	g.must("cp", "-r", filepath.Join(g.dir, "units")+"/.", "/run/systemd/system")
	g.systemctl("daemon-reload")
	g.systemctl("start", unit)
	awaitRead(1)
	g.systemctl("restart", unit)
	awaitRead(2)
	g.systemctl("restart", mount)
	awaitRead(3)

	n.Registry.Wire.Add(node.Fault{Status: 503})
	g.end()
	g.boot()
	awaitRead(4)
	g.systemctl("stop", systemd.Service)
	pid := g.show(unit, "MainPID")
	g.must("sha256sum", "/proc/"+pid+"/root"+dir+"/model.gguf")
	g.systemctl("start", systemd.Service)
	g.systemctl("stop", mount) // and with it the service
	if state := g.show(unit, "ActiveState"); state != "inactive" {
		t.Errorf("without its mount the service is %s", state)
	}
	if out := g.ballast("mount", "ls", "-q"); out != "" {
		t.Errorf("mounts that are left: %s", out)
	}
}
