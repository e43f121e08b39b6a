package tree

import (
	"context"
	"os"
	"slices"

	"github.com/ballast-dev/ballast/store/durable"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Up to syncTogether files and directories are synced in parallel, so that they share writes of the
// journal. From syncAll on, the whole file system is synced at once, which is faster but also waits
// for other writers.
const (
	syncTogether = 32
	syncAll      = 512
)

// finish sets the attributes of directories, deepest first, and makes all files and directories
// durable. dirs are sorted.
func (t *tree) finish(ctx context.Context, dirs []string) error {
	for _, d := range slices.Backward(dirs) {
		if d != "." { // sorts between other names
			if err := t.finishDir(d); err != nil {
				return err
			}
		}
	}
	if err := t.finishDir("."); err != nil {
		return err
	}
	all := append(t.sync, dirs...)
	if len(all) >= syncAll && durable.SyncfsTells() {
		return unix.Syncfs(int(t.top.Fd())) // opened before the first write, so that no error is told to others only
	}
	var g errgroup.Group
	g.SetLimit(syncTogether)
	for _, p := range all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return syncPath(t.root, p)
		})
	}
	return g.Wait()
}

// finishDir sets the attributes of a directory.
func (t *tree) finishDir(dir string) error {
	a := t.dirs[dir]
	if err := t.root.Chown(dir, int(a.uid), int(a.gid)); err != nil {
		return err
	}
	if err := t.root.Chmod(dir, a.mode); err != nil {
		return err
	}
	if err := t.root.Chtimes(dir, a.mtime, a.mtime); err != nil {
		return err
	}
	return t.count(dir)
}

// syncPath makes a file, or the entries of a directory, durable.
func syncPath(root *os.Root, p string) error {
	f, err := root.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
