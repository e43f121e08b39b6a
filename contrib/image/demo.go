package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/contrib/image/build"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// musl is the licence of the C library that runc is linked with, in a package of Debian.
const musl = "/usr/share/doc/musl/copyright"

// demonstration is the image of the demo: its program, and all that it needs. Its files are in a volume, because an
// overlayfs, such as the root of most containers, cannot have the files that another one changes.
func (s *settings) demonstration(ctx context.Context) (*content, error) {
	containerd, err := s.containerd(ctx)
	if err != nil {
		return nil, err
	}
	ours, others := []build.Main{s.Ours(), s.Demo()}, []build.Main{containerd, s.runc()}
	layers := func(ctx context.Context, arch string) ([]mutate.Addendum, error) {
		modules, err := build.Modules(ctx, []string{arch}, append(ours, others...)...)
		if err != nil {
			return nil, err
		}
		library, err := os.ReadFile(musl)
		if err != nil {
			return nil, fmt.Errorf("the licence of musl: %w", err)
		}
		documents, err := s.documents(modules)
		if err != nil {
			return nil, err
		}
		documents = append(documents, file{"run", 0o755, nil}, file{"usr/share/doc/musl", 0o755, nil}, file{musl[1:], 0o644, library})
		all := make([]mutate.Addendum, 3)
		if all[0], err = s.layer("licence and notices", documents); err != nil {
			return nil, err
		}
		for i, mains := range [][]build.Main{others, ours} {
			files, err := programs(ctx, arch, mains...)
			if err != nil {
				return nil, err
			}
			if all[i+1], err = s.layer([]string{"containerd and runc", "ballast and its demo"}[i], files); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return &content{repository: repository + "-demo", command: build.DemoName, volumes: map[string]struct{}{"/tmp": {}}, layers: layers}, nil
}

// containerd is the newest containerd that the tests run.
func (s *settings) containerd(ctx context.Context) (m build.Main, err error) {
	versions, err := os.ReadFile(filepath.Join(s.Source, "test/containerd.txt"))
	if err != nil {
		return m, err
	}
	lines := strings.Split(strings.TrimSpace(string(versions)), "\n")
	f := strings.Fields(lines[len(lines)-1]) // module, version, checksum
	if len(f) != 3 {
		return m, fmt.Errorf("the last line of test/containerd.txt is %q", f)
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", f[0]+"@v"+f[1])
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
	if got.Sum != f[2] {
		return m, fmt.Errorf("%s %s has the checksum %s, not %s", f[0], f[1], got.Sum, f[2])
	}
	return build.Main{
		Dir: got.Dir, Version: "v" + f[1], Packages: []string{"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2"},
		Flags: []string{"-mod=readonly"}, LDFlags: "-s -w -X " + f[0] + "/version.Version=" + f[1],
	}, nil
}

// runc is the runc that the tests run, but without seccomp, whose library has another licence, and with musl for the
// same reason.
func (s *settings) runc() build.Main {
	headers := "-O2 -idirafter /usr/include -idirafter /usr/include/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[s.archs[0]] + "-linux-gnu"
	return build.Main{
		Dir: filepath.Join(s.Source, "test/e2e/runc"), Packages: []string{"github.com/opencontainers/runc"},
		Flags: []string{"-tags=netgo,osusergo"}, LDFlags: "-s -w -linkmode external -extldflags -static",
		Env: []string{"CGO_ENABLED=1", "CC=musl-gcc", "CGO_CFLAGS=" + headers},
	}
}
