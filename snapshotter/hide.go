package snapshotter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/store"
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

// ensureHide creates the hiding layer again if it was removed or changed: without it, mounts fail, or
// containerd's own show the objects of all models.
func (s *Snapshotter) ensureHide() error {
	if isWhiteout(whiteout(s.hideDir())) {
		return nil
	}
	s.hiding.Lock()
	defer s.hiding.Unlock()
	if isWhiteout(whiteout(s.hideDir())) { // made by a concurrent call
		return nil
	}
	if err := makeHide(s.hideDir()); err != nil {
		return err
	}
	s.log.Warn("layer that hides objects was missing or damaged and is created again", "path", s.hideDir())
	return nil
}
