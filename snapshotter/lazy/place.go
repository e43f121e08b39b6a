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

// places resolves the directories, and makes their parents.
func (o Options) places() (p places, err error) {
	if p.dir, err = resolveDir(o.Dir); err != nil || o.Apart == "" {
		return p, err
	}
	p.apart, err = resolveDir(o.Apart)
	return p, err
}

// of returns where the mount that rec describes belongs.
func (p places) of(rec *record) string {
	if p.apart != "" && !rec.idMappable() {
		return p.apart
	}
	return p.dir
}

// owns says whether the record is of a mount that belongs here, and not a copy of that of another root.
func (p places) owns(rec *record) bool { return cmp.Or(rec.Home, rec.Dir) == p.dir }

// idMappable says whether the kernel can id-map mounts of the file system: it offered to, and was not told that
// it must not. Versions that did not record this always agreed.
func (r *record) idMappable() bool {
	const flags2 = inHeader + 16 // in InitIn
	if r.NoIDMap || len(r.Init) < flags2+4 {
		return false
	}
	return uint64(binary.NativeEndian.Uint32(r.Init[flags2:]))<<32&fuse.CAP_ALLOW_IDMAP != 0
}

// all returns the directories where a mount of ours can be: the places, and where the record says, which a
// process with another configuration wrote.
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

// detachAll removes our mounts at directories.
func detachAll(dirs []string, log *slog.Logger) error {
	var errs []error
	for _, dir := range dirs {
		if err := detach(dir, log); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// settle moves the mount to where it belongs. What has been opened through it, and other mounts that it is a layer
// of, keep it as it is: they do not go by names. It is one file system all the time, so readers notice nothing.
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
	m.state.rec.Dir, m.state.rec.Home, m.dir = to, p.dir, to // all else of the record is read by who serves
	m.log.Info("lazy mount is moved", "from", from, "to", to)
	if err := unix.Unmount(from, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", from, err)
	}
	return nil
}

// leave unmounts the same file system at the other place, where a process that died left it.
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
