package snapshotter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mounted returns which of the snapshots ids are part of a mount, in the mount namespace of any
// process: containers have mounts that nobody else sees. A mount that no process has in its
// table (it was detached, or its namespace is kept by a file) is not found.
//
// host says that they are of models on the host, whose mounts have a source of their own: others' do not count if it
// is not known what their paths are.
func (s *Snapshotter) mounted(ids []string, host bool) (map[string]bool, error) {
	self, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	finder := &mountFinder{dir: filepath.Join(s.root, "snapshots"), host: host, ids: map[string]bool{}, found: map[string]bool{}}
	for _, id := range ids {
		finder.ids[id] = true
	}
	finder.place(self)
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, table := range tables {
		// Whose namespace can not be asked for has a table all the same.
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(table), "ns", "mnt"))
		if seen[namespace] {
			continue
		}
		err := finder.read(table)
		switch {
		case err == nil:
			seen[namespace] = namespace != ""
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL): // of a process that ended
			return nil, fmt.Errorf("look for mounts of snapshots: %w", err)
		}
	}
	return finder.found, nil
}

// A mountFinder looks for snapshots in tables of mounts.
type mountFinder struct {
	dir          string // of the snapshots
	host         bool   // see mounted
	ids          map[string]bool
	found        map[string]bool
	major, minor int    // of the file system that dir is on
	inside       string // the path of dir on it
}

// place finds out where a bind mount of a snapshot would come from.
func (f *mountFinder) place(self []*mountinfo.Info) {
	best := -1
	for _, m := range self {
		rel, err := filepath.Rel(m.Mountpoint, f.dir)
		if err == nil && filepath.IsLocal(rel) && len(m.Mountpoint) >= best {
			best = len(m.Mountpoint)
			f.major, f.minor, f.inside = m.Major, m.Minor, filepath.Join(m.Root, rel)
		}
	}
}

func (f *mountFinder) read(table string) error {
	file, err := os.Open(table)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = mountinfo.GetMountsFromReader(file, func(m *mountinfo.Info) (skip, stop bool) {
		if m.FSType == "overlay" {
			f.overlay(m.Source, m.VFSOptions)
		} else if rel, err := filepath.Rel(f.inside, m.Root); err == nil && m.Major == f.major && m.Minor == f.minor {
			f.take(rel)
		}
		return true, false
	})
	return err
}

// snapshotPath is a directory of a snapshot in a path that is not below f.dir: of a root that was
// moved, or relative, as containerd writes long lists.
var snapshotPath = regexp.MustCompile(`^(?:.*/snapshots/)?([0-9]+)/(?:fs|work)$`)

// overlay looks for snapshots in the options of an overlay mount. A path that leads to something
// else is something else's; one that leads nowhere could be ours.
func (f *mountFinder) overlay(source, options string) {
	for o := range strings.SplitSeq(options, ",") {
		key, list, _ := strings.Cut(o, "=")
		switch strings.TrimSuffix(key, "+") {
		case "lowerdir", "upperdir", "workdir":
		default:
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			dir = octal.ReplaceAllStringFunc(dir, unescape)
			rel, err := filepath.Rel(f.dir, dir)
			if err == nil && filepath.IsLocal(rel) {
				f.take(rel)
			} else if id := snapshotPath.FindStringSubmatch(dir); id != nil && (!f.host || source == hostSource(id[1])) {
				if _, err := os.Lstat(dir); err != nil || !filepath.IsAbs(dir) {
					f.take(id[1])
				}
			}
		}
	}
}

// take notes the snapshot of a path below f.dir.
func (f *mountFinder) take(rel string) {
	if id, _, _ := strings.Cut(rel, "/"); f.ids[id] {
		f.found[id] = true
	}
}

// octal is how the kernel writes what would end an option or a field.
var octal = regexp.MustCompile(`\\[0-7]{3}`)

func unescape(s string) string {
	return string([]byte{(s[1]-'0')<<6 | (s[2]-'0')<<3 | (s[3] - '0')})
}
