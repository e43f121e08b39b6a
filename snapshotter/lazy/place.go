package lazy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// places are the directories of Options, without symbolic links.
type places struct{ dir, apart string }

// places resolves the directories and creates their parents.
func (o Options) places() (p places, err error) {
	if p.dir, err = resolveDir(o.Dir); err != nil || o.Apart == "" {
		return p, err
	}
	p.apart, err = resolveDir(o.Apart)
	return p, err
}

// owns reports whether the record describes a mount of these directories, not a copy from another
// root.
func (p places) owns(rec *record) bool { return cmp.Or(rec.Home, rec.Dir) == p.dir }

// all returns the directories where a mount can be: the places, and the directory in the record,
// which a process with another configuration may have written.
func (p places) all(state string) []string {
	dirs := []string{p.dir}
	if p.apart != "" {
		dirs = append(dirs, p.apart)
	}
	if rec, err := readRecord(state); err == nil && p.owns(rec) && !slices.Contains(dirs, rec.Dir) {
		dirs = append(dirs, rec.Dir)
	}
	return dirs
}

// detachAll removes the lazy mounts at directories.
func detachAll(dirs []string, log *slog.Logger) error {
	var errs []error
	for _, dir := range dirs {
		if err := detach(dir, log); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// move moves a mount that nothing uses yet. The kernel does not move a mount below a shared one in one step.
func move(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	if err := unix.Unmount(from, unix.MNT_DETACH); err != nil {
		return errors.Join(fmt.Errorf("unmount %s: %w", from, err), unix.Unmount(to, unix.MNT_DETACH))
	}
	return nil
}

// hide gives the mount to the keeper and removes it from its directory, where programs that look into
// all mounts, as df and find do, would wait for the next daemon. Those that use it are not affected.
func (m *Mount) hide() error {
	if mi, ok, err := findMount(m.dir); err != nil || !ok || mi.dev != m.state.rec.Dev {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open the mount: %w", err)
	}
	if err = m.keeper.KeepMount(m.state.rec.name(), fd); err == nil {
		err = unix.Unmount(m.dir, unix.MNT_DETACH)
	}
	return errors.Join(err, unix.Close(fd))
}

// show puts a mount that hide has given to the keeper at its directory. A nil mount was not hidden.
func show(mount *os.File, rec *record) error {
	if mount == nil {
		return nil
	}
	if mi, ok, err := findMount(rec.Dir); err != nil || ok && mi.dev == rec.Dev { // the process was killed before the unmount
		return err
	}
	if err := os.MkdirAll(rec.Dir, 0o700); err != nil {
		return err
	}
	if err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, rec.Dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount at %s again: %w", rec.Dir, err)
	}
	return nil
}
