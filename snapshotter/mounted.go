package snapshotter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mounted returns which of the snapshots ids are part of a mount, in the mount namespace of any
// process: containers have mounts that are visible only to them. A mount that is in no process's
// mount table (detached, or in a namespace kept by a file) is not found.
//
// host is true for snapshots of models on the host, whose mounts have their own source. It ignores
// other mounts whose paths cannot be resolved.
func (s *Snapshotter) mounted(ids []string, host bool) (map[string]bool, error) {
	self, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	finder := &mountFinder{dir: filepath.Join(s.root, snapshotsName), host: host, ids: map[string]bool{}, found: map[string]bool{}, seen: map[string]bool{}}
	for _, id := range ids {
		finder.ids[id] = true
	}
	finder.locate(self)
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		err := finder.read(table)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) { // the process ended
			return nil, fmt.Errorf("look for mounts of snapshots: %w", err)
		}
	}
	return finder.found, nil
}

// A mountFinder searches mount tables for snapshots.
type mountFinder struct {
	dir          string // of the snapshots
	host         bool   // see mounted
	ids          map[string]bool
	found        map[string]bool
	seen         map[string]bool // first lines of mount tables
	major, minor int             // of the file system of dir
	inside       string          // the path of dir on that file system
}

// locate finds the device and path that a bind mount of a snapshot would have as its source.
func (f *mountFinder) locate(self []*mountinfo.Info) {
	best := -1
	for _, m := range self {
		rel, err := filepath.Rel(m.Mountpoint, f.dir)
		if err == nil && filepath.IsLocal(rel) && len(m.Mountpoint) >= best {
			best = len(m.Mountpoint)
			f.major, f.minor, f.inside = m.Major, m.Minor, filepath.Join(m.Root, rel)
		}
	}
}

// read searches a mount table, unless one with the same first line was searched: it has the id of a mount, which is
// in one namespace, and its path from the root of the process, which sees only mounts below that.
func (f *mountFinder) read(table string) error {
	file, err := os.Open(table)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	first, err := lines.ReadString('\n')
	if err == io.EOF || f.seen[first] { // a process may see no mounts
		return nil
	} else if err != nil {
		return err
	}
	_, err = mountinfo.GetMountsFromReader(io.MultiReader(strings.NewReader(first), lines), func(m *mountinfo.Info) (skip, stop bool) {
		if m.FSType == "overlay" {
			f.overlay(m.Source, m.VFSOptions)
		} else if rel, err := filepath.Rel(f.inside, m.Root); err == nil && m.Major == f.major && m.Minor == f.minor {
			f.record(rel)
		}
		return true, false
	})
	f.seen[first] = err == nil
	return err
}

// snapshotPath matches the directory of a snapshot in a path that is not below f.dir: below a root
// that was moved, or relative, as containerd writes long lists.
var snapshotPath = regexp.MustCompile(`^(?:.*/snapshots/)?([0-9]+)/(?:fs|work)$`)

// overlay searches the options of an overlay mount for snapshots. An existing path elsewhere
// belongs to something else; one that does not exist may belong to this snapshotter.
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
				f.record(rel)
			} else if id := snapshotPath.FindStringSubmatch(dir); id != nil && (!f.host || source == hostSource(id[1])) {
				if _, err := os.Lstat(dir); err != nil || !filepath.IsAbs(dir) {
					f.record(id[1])
				}
			}
		}
	}
}

// record adds the snapshot of a path below f.dir.
func (f *mountFinder) record(rel string) {
	if id, _, _ := strings.Cut(rel, "/"); f.ids[id] {
		f.found[id] = true
	}
}

// octal matches the kernel's escapes for characters that would end an option or a field.
var octal = regexp.MustCompile(`\\[0-7]{3}`)

func unescape(s string) string {
	return string([]byte{(s[1]-'0')<<6 | (s[2]-'0')<<3 | (s[3] - '0')})
}
