package kubelet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestFleetFormats: what was pulled as the agent of ModelSets does, pods mount that do not pull: each format, public and
// private, from a registry that is closed and from one that is open. A pull from an open registry that no pod could
// mount says what to close.
func TestFleetFormats(t *testing.T) {
	const user, secret = "alice", "s3cret-of-fleet"
	k := startNode(t, node.Options{}, nil)
	open := node.StartRegistry(t, t.TempDir())
	k.node.Direct(t, open.Host, open.Host)
	mounted, refused, seed := map[string][]*converttest.Built{}, 0, byte(0)
	var pulled []string                 // from the open registry
	configs := map[digest.Digest]bool{} // there: containerd takes models with one config for one image
	for i, r := range []*node.Registry{k.node.Registry, open} {
		node.Belongs(secret, r.Host)
		for _, private := range []bool{false, true} {
			kind := fmt.Sprintf("fleet-%d-%t", i, private)
			p := k.pod(kind, "", "")
			p.Spec.Volumes, p.Spec.Containers[0].Mounts = nil, nil
			for j, b := range converttest.All(converttest.Files(nil)) {
				seed++
				b = converttest.All(converttest.Files(weights(seed, 1<<18+1)))[j]
				var m ocispec.Manifest
				if err := json.Unmarshal(b.Manifest, &m); err != nil {
					t.Fatal(err)
				}
				if r == open && configs[m.Config.Digest] {
					continue
				}
				configs[m.Config.Digest] = r == open
				repository := fmt.Sprintf("%s/%s", kind, b.Name)
				r.Push(t, repository, "1", artifact(b))
				request := map[string]string{"ref": r.Ref(repository, "1")}
				if private {
					r.User, r.Password = user, secret
					request["username"], request["password"] = user, secret
				}
				if r == open {
					pulled = append(pulled, request["ref"])
				}
				version, err := k.node.FleetVersion(request)
				if err != nil {
					t.Errorf("%s: %v", repository, err)
				}
				request["version"] = version
				err = k.node.FleetPull(request)
				r.User, r.Password = "", ""
				if err != nil && r == open && strings.Contains(err.Error(), "ballast setup --registry "+open.Host) {
					refused++
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", repository, err)
					continue
				}
				mounted[kind] = append(mounted[kind], b)
				p.Spec.Volumes = append(p.Spec.Volumes, volume{b.Name, imageVolume{request["ref"], "Never"}})
				p.Spec.Containers[0].Mounts = append(p.Spec.Containers[0].Mounts, mount{Volume: b.Name, Path: "/models/" + b.Name})
			}
			k.apply(t, p)
		}
	}
	for kind, all := range mounted {
		k.awaitRunning(t, k.pod(kind, "", ""))
		for _, b := range all {
			dir := "/models/" + b.Name
			if !strings.HasPrefix(kind, "fleet-1") {
				k.wantFiles(t, kind, "main", dir, states(b))
				continue
			}
			if out, err := k.cri.Exec(k.container(t, kind, "main"), "/bin/busybox", "find", dir, "-type", "f"); err != nil || out == "" { // as containerd unpacks it
				t.Errorf("%s of %s: got %q, %v, want files", dir, kind, out, err)
			}
		}
	}
	n := len(converttest.All(converttest.Files(nil)))
	if len(mounted["fleet-0-false"]) != n || len(mounted["fleet-0-true"]) != n || len(mounted["fleet-1-false"]) < 4 || len(mounted["fleet-1-true"]) < 2 || refused == 0 {
		t.Errorf("%d formats; refused %d, mounted %v", n, refused, mounted)
	}
	for i, b := range []*converttest.Built{converttest.ModelPackTar(converttest.Files(weights(1, 1<<18))), converttest.ModelPackTarGzip(converttest.Files(weights(1, 1<<18)))} {
		open.Push(t, b.Name, "1", artifact(b))
		if err := k.node.FleetPull(map[string]string{"ref": open.Ref(b.Name, "1")}); i == 0 && err != nil || i == 1 && (err == nil || !strings.Contains(err.Error(), "the same config")) {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
	// containerd unpacks some of these itself, so nothing needs the files that ballastd has downloaded a moment ago.
	for _, ref := range append(pulled, open.Ref("modelpack-tar", "1"), open.Ref("modelpack-tar-gzip", "1")) {
		if out := k.node.Ballast("rm", "--now", ref); out.Err != nil && !strings.Contains(out.Output(), "is in use") {
			t.Errorf("ballast rm %s: %v\n%s", ref, out.Err, out.Output())
		}
	}
}
