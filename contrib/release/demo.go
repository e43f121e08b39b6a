package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ballast-dev/ballast/contrib/release/build"
)

// musl is the licence of the C library that runc is linked with, in a package of Debian.
const musl = "/usr/share/doc/musl/copyright"

// demo writes the image of the demo: its program, and all that it needs, for the architecture of this machine. Its
// files are in a volume, because an overlayfs, such as the root of most containers, cannot have the files that
// another one changes.
func (r *release) demo(ctx context.Context) error {
	return r.writeImage(ctx, container{
		part: "demo", file: fmt.Sprintf("%s_%s_image_%s", build.DemoName, r.number(), runtime.GOARCH), repository: repository + "-demo",
		command: build.DemoName, volumes: map[string]struct{}{"/tmp": {}}, archs: []string{runtime.GOARCH}, layers: r.demonstration,
	})
}

// demonstration returns the layers of the demo.
func (r *release) demonstration(ctx context.Context, arch string) ([]layer, error) {
	containerd, err := r.containerd(ctx)
	if err != nil {
		return nil, err
	}
	runc, err := r.runc(ctx, arch)
	if err != nil {
		return nil, err
	}
	ours, others := []build.Main{r.Ours(), r.Demo()}, []build.Main{containerd, runc}
	modules, err := build.Modules(ctx, []string{arch}, append(ours, others...)...)
	if err != nil {
		return nil, err
	}
	layers := []layer{{comment: "licence and notices"}, {comment: "containerd and runc"}, {comment: "ballast and its demo"}}
	for i, fill := range []func(tree) error{
		func(t tree) error {
			return errors.Join(r.documents(t, modules), os.Mkdir(t.path("run"), 0o755), t.copy(musl, musl))
		},
		func(t tree) error { return r.programs(ctx, arch, t, binDir, others...) },
		func(t tree) error { return r.programs(ctx, arch, t, binDir, ours...) },
	} {
		if layers[i].files, err = r.tree(fmt.Sprint("demo-", i), fill); err != nil {
			return nil, err
		}
	}
	return layers, nil
}

// containerd is the newest containerd that the tests run.
func (r *release) containerd(ctx context.Context) (build.Main, error) {
	const module = "github.com/containerd/containerd/v2"
	m, err := r.pinned(ctx, "containerd.txt", module)
	m.Packages = []string{"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2"}
	m.LDFlags = "-s -w -X " + module + "/version.Version=" + strings.TrimPrefix(m.Version, "v")
	return m, err
}

// runc is the runc that the tests run, but without seccomp, whose library has another licence, and with musl for the
// same reason.
func (r *release) runc(ctx context.Context, arch string) (build.Main, error) {
	headers := "-O2 -idirafter /usr/include -idirafter /usr/include/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-linux-gnu"
	m, err := r.pinned(ctx, "programs.txt", "github.com/opencontainers/runc")
	m.Packages = []string{"."}
	m.Flags = append(m.Flags, "-tags=netgo,osusergo")
	m.LDFlags = "-s -w -linkmode external -extldflags -static"
	m.Env = []string{"CGO_ENABLED=1", "CC=musl-gcc", "CGO_CFLAGS=" + headers}
	return m, err
}

// pinned returns a module of others, which is built with the dependencies of its own go.mod, from the last line of a
// file in test/ that has it: module, version and checksum.
func (r *release) pinned(ctx context.Context, file, module string) (m build.Main, err error) {
	text, err := os.ReadFile(filepath.Join(r.Source, "test", file))
	if err != nil {
		return m, err
	}
	var version, sum string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == module {
			version, sum = f[1], f[2]
		}
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@v"+version)
	cmd.Dir = "/" // outside of a module, so that its go.sum does not change
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("%s: %w\n%s%s", cmd, err, out, failed.String())
	}
	var got struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &got); err != nil {
		return m, err
	}
	if got.Sum != sum {
		return m, fmt.Errorf("%s %s has the checksum %s, not %s", module, version, got.Sum, sum)
	}
	return build.Main{Name: path.Base(module), Dir: got.Dir, Version: "v" + version, Flags: []string{"-mod=readonly"}}, nil
}
