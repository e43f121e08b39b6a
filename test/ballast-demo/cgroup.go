package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// leaveRoot moves this process, the only one of a container, from the control group of the container to one below
// it. runc gives controllers to the groups beside that one, and those of a group with processes become threaded, in which
// runc finds no processes.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#no-internal-process-constraint
func leaveRoot(root string) error {
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil // version 1, or the group of the whole machine
	}
	dir := filepath.Join(root, "init")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644) // the writer
}
