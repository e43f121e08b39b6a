package snapshotter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// hideDir is a lower layer that contains only a whiteout over the one top-level directory of the
// objects. See lowerOptions.
func (s *Snapshotter) hideDir() string { return filepath.Join(s.root, hideName) }

// whiteout returns the path of the whiteout.
func whiteout(hide string) string {
	top, _, _ := strings.Cut(store.ObjectName(digest.FromBytes(nil)), "/")
	return filepath.Join(hide, top)
}

// makeHide creates or repairs the hiding layer.
func makeHide(hide string) error {
	if err := os.Mkdir(hide, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	name := whiteout(hide)
	if isWhiteout(name) {
		return nil
	}
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	if err := unix.Mknod(name, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make whiteout %s: %w", name, err)
	}
	return nil
}

// isWhiteout reports whether name is a whiteout: a character device 0:0.
// https://github.com/torvalds/linux/blob/v6.5/Documentation/filesystems/overlayfs.rst
func isWhiteout(name string) bool {
	var st unix.Stat_t
	return unix.Lstat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// checkHide returns errdefs.ErrDataLoss if the whiteout is missing: without it, containerd's own
// mounts would show the objects of all models.
func (s *Snapshotter) checkHide() error {
	if name := whiteout(s.hideDir()); !isWhiteout(name) {
		return fmt.Errorf("%s is not a whiteout; restart ballastd to repair it: %w", name, errdefs.ErrDataLoss)
	}
	return nil
}
