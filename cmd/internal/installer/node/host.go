package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
)

// maxFile limits the size of a configuration file that is read, in bytes.
const maxFile = 8 << 20 // 8 MiB

// A Host is the file system of a machine, seen from this process. Paths are those of the host; symbolic
// links stay inside of it.
type Host struct {
	Root string // of the host's file system in this process; "/" is this machine
}

// Path returns the path of a file of the host in this process. The file need not exist.
func (h Host) Path(p string) (string, error) {
	dir, err := continuity.RootPath(h.Root, filepath.Dir(p)) // the last part may be a link that is to be replaced
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", p, h.Root, err)
	}
	return filepath.Join(dir, filepath.Base(p)), nil
}

// Follow returns the path of a file in this process, with all symbolic links followed.
func (h Host) Follow(p string) (string, error) {
	name, err := continuity.RootPath(h.Root, p)
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", p, h.Root, err)
	}
	return name, nil
}

// Read returns the content and the permissions of a file. It follows symbolic links.
func (h Host) Read(p string) ([]byte, fs.FileMode, error) {
	name, err := h.Follow(p)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a file: %w", name, errdefs.ErrFailedPrecondition)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes: %w", name, maxFile, errdefs.ErrFailedPrecondition)
	}
	return b, info.Mode().Perm(), err
}

// Text returns the content of a file, or "" if it does not exist.
func (h Host) Text(p string) (string, error) {
	b, _, err := h.Read(p)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// Exists reports whether a path exists.
func (h Host) Exists(p string) bool {
	name, err := h.Path(p)
	if err != nil {
		return false
	}
	_, err = os.Lstat(name)
	return err == nil
}

// IsDir reports whether a path is a directory, after following symbolic links.
func (h Host) IsDir(p string) bool {
	name, err := h.Follow(p)
	if err != nil {
		return false
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// List returns the names in a directory, sorted; none if it does not exist.
func (h Host) List(p string) ([]string, error) {
	name, err := h.Follow(p)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// programDirs are the directories of programs of a host, as in root's PATH.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// Run runs a program of the host, with the host's root directory, and returns its output. It does not
// get the environment of this process.
//
// In another root, systemctl would detect a chroot and not contact the manager; the variable
// prevents that, and the manager's socket below /run is the host's.
func (h Host) Run(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + strings.Join(programDirs, ":"), "LC_ALL=C", "SYSTEMD_IGNORE_CHROOT=1", "SYSTEMD_PAGER="}
	name := argv[0]
	for _, dir := range programDirs {
		if strings.Contains(name, "/") {
			break
		}
		if full := dir + "/" + argv[0]; h.Exists(full) {
			name = full
		}
	}
	if !strings.Contains(name, "/") {
		return "", fmt.Errorf("%s does not exist on the host: %w", argv[0], errdefs.ErrNotFound)
	}
	cmd.Path, cmd.Err = name, nil
	if h.Root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: h.Root}
		// In the process namespace of a pod, systemctl cannot see whose its private connection to systemd is, and
		// refuses it.
		cmd.Env = append(cmd.Env, "SYSTEMCTL_FORCE_BUS=1")
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		if text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return text, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return text, nil
}
