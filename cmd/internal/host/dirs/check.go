package dirs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/containerd/errdefs"
)

// Check returns errdefs.ErrFailedPrecondition, with the key and what to do, if a directory of a
// configuration cannot be ballast's on a host: it belongs to the system or to other programs, has
// files of others, or can be changed by other users. It changes nothing.
func Check(c *config.Config, host string) error {
	for _, d := range All(c) {
		if err := d.check(host); err != nil {
			return err
		}
	}
	return nil
}

// check checks one directory, see the function Check.
func (d Dir) check(host string) error {
	here, there, err := d.resolve(host)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Key, err)
	}
	own := "use a directory of its own, such as /var/lib/ballast"
	if d.sockets != nil {
		own = "use a directory of its own, such as /run/ballast"
	}
	if config.Shared(there) {
		return d.refuse("%s is %s, which is used by other programs; %s", d.Path, there, own)
	}
	info, err := os.Stat(here)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // the daemon creates it
	case err != nil:
		return fmt.Errorf("%s: %w", d.Key, err)
	case !info.IsDir():
		return d.refuse("%s is not a directory", d.Path)
	case info.Mode().Perm()&0o022 != 0:
		return d.refuse("other users can change %s: chmod go-w %s", d.Path, there)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && int(uid) != os.Geteuid() {
		return d.refuse("%s belongs to the user %d: chown 0 %s", d.Path, uid, there)
	}
	entries, err := os.ReadDir(here)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Key, err)
	}
	if d.used(here) || d.sockets != nil && info.Mode().Perm()&0o077 == 0 { // root's alone, so its mode stays
		return nil
	}
	var others []string
	for _, e := range entries {
		if !d.harmless(here, e) {
			others = append(others, e.Name())
		}
	}
	if len(others) == 0 {
		return nil
	}
	return d.refuse("%s has files that are not ballast's (%s); %s", d.Path, some(others), own)
}

// Foreign returns the paths directly in the directories of a configuration that are not ballast's:
// they stay when ballast is removed. Sockets of others are not among them.
func Foreign(c *config.Config, host string) (paths []string, err error) {
	for _, d := range All(c) {
		here, _, err := d.resolve(host)
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(here)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name := e.Name()
			if d.kind(name) == foreign && name != lostAndFound && !d.leadsTo(name) && (d.sockets == nil || e.Type() != fs.ModeSocket) {
				paths = append(paths, filepath.Join(d.Path, name))
			}
		}
	}
	return paths, nil
}

// harmless reports whether a directory that ballast has not used can contain an entry: it is of the
// file system, is left from a first start that was interrupted, or is not in the way.
func (d *Dir) harmless(here string, e fs.DirEntry) bool {
	name := e.Name()
	switch {
	case name == lostAndFound || d.leadsTo(name):
		return true
	case d.sockets != nil:
		return d.kind(name) != foreign || e.Type() == fs.ModeSocket
	case d.kind(name) == foreign || !e.IsDir():
		return false
	}
	inside, err := os.ReadDir(filepath.Join(here, name))
	return err == nil && len(inside) == 0
}

// leadsTo reports whether another directory of the daemon is at or below a name.
func (d *Dir) leadsTo(name string) bool {
	at := filepath.Join(d.Path, name)
	return slices.ContainsFunc(d.nested, func(p string) bool { return p == at || strings.HasPrefix(p, at+"/") })
}

// some returns the first names of a list as text.
func some(names []string) string {
	const most = 2
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (d *Dir) refuse(format string, a ...any) error {
	return fmt.Errorf("%s: %s: %w", d.Key, fmt.Sprintf(format, a...), errdefs.ErrFailedPrecondition)
}
