package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls are the kernel settings that the kubelet requires.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/cm/container_manager_linux.go
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// HideSysctls shows a kubelet the kernel settings that it requires, in files below dir, so that it does not change
// those of the machine. It works in the mount namespace of the caller, until show is called.
func HideSysctls(dir string) (show func() error, err error) {
	var hidden []string
	show = func() (err error) {
		for _, p := range hidden {
			err = errors.Join(err, unix.Unmount(p, unix.MNT_DETACH))
		}
		return err
	}
	for name, value := range sysctls {
		p, at := filepath.Join(dir, filepath.Base(name)), filepath.Join("/proc/sys", name)
		if err := errors.Join(os.WriteFile(p, []byte(value+"\n"), 0o644), unix.Mount(p, at, "", unix.MS_BIND, "")); err != nil {
			return show, fmt.Errorf("hide %s: %w", name, err)
		}
		hidden = append(hidden, at)
	}
	return show, nil
}

// Cover mounts a writable copy over a directory, with what is written below dir.
func Cover(dir, p string) error {
	upper, work := filepath.Join(dir, p, "upper"), filepath.Join(dir, p, "work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	return unix.Mount("overlay", p, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", p, upper, work))
}

// Empty mounts an empty directory over a directory, with what is written below dir.
func Empty(dir, p string) error {
	fresh := filepath.Join(dir, p)
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return err
	}
	return unix.Mount(fresh, p, "", unix.MS_BIND, "")
}

// Disk makes a file with an ext4 file system of a size in bytes, and mounts it at a directory with options, of which
// "loop" is one.
func Disk(file string, size int64, dir, options string) error {
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
		return err
	}
	for _, argv := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", file}, {"mount", "-o", options, file, dir}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
	}
	return nil
}

// Tree lists what is in directories of a machine, in which sh runs scripts: modes, owners, links, and the digests of
// files up to 8 MiB. where is the begin of a command line of find, with what is left out.
func Tree(sh func(script string) string, where string) map[string]string {
	out := sh("find " + where + ` -printf '%M %U:%G %l\t%p\n'; find ` + where + ` -type f -size -8M -exec sha256sum {} + | sed 's/  /\t#/'`)
	files := map[string]string{}
	for _, l := range Lines(out) {
		what, path, _ := strings.Cut(l, "\t")
		files[path] = what
	}
	return files
}
