package lazy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
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

// of returns the directory for the mount that rec describes.
func (p places) of(rec *record) string {
	if p.apart != "" && !rec.idMappable() {
		return p.apart
	}
	return p.dir
}

// owns reports whether the record describes a mount of these directories, not a copy from another
// root.
func (p places) owns(rec *record) bool { return cmp.Or(rec.Home, rec.Dir) == p.dir }

// idMappable reports whether the kernel can id-map the mount: it offered to, and the answer
// accepted. Versions that did not record the answer always accepted.
func (r *record) idMappable() bool {
	const flags2 = inHeader + 16 // in InitIn
	if r.NoIDMap || len(r.Init) < flags2+4 {
		return false
	}
	return uint64(binary.NativeEndian.Uint32(r.Init[flags2:]))<<32&fuse.CAP_ALLOW_IDMAP != 0
}

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

// settle moves the mount to its directory. Open files, and mounts that use it as a layer, are not
// affected. It stays one file system, so reads continue.
//
//	at the old place → at both → recorded at the new → only there
func (m *Mount) settle(p places) error {
	from, to := m.dir, p.of(m.state.rec)
	if from == to {
		return m.leave(p, to)
	}
	if err := detachAll([]string{to}, m.log); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	rec := *m.state.rec
	rec.Dir, rec.Home = to, p.dir
	if err := rec.save(m.state.dir); err != nil {
		return errors.Join(err, unix.Unmount(to, unix.MNT_DETACH))
	}
	m.state.rec.Dir, m.state.rec.Home, m.dir = to, p.dir, to // the serving goroutines read the other fields of the record
	m.log.Info("lazy mount moved", "from", from, "to", to)
	if err := unix.Unmount(from, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", from, err)
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

// leave unmounts the same file system at the other directory, where a process that was killed left
// it.
func (m *Mount) leave(p places, at string) error {
	for _, dir := range []string{p.dir, p.apart} {
		if dir == at || dir == "" {
			continue
		}
		if mi, ok, err := findMount(dir); err != nil || !ok || mi.dev != m.state.rec.Dev {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}
