package tree

import (
	"context"
	"os"
	"slices"

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
	if len(all) >= syncAll {
		return t.syncfs()
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

func (t *tree) syncfs() error {
	top, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	return unix.Syncfs(int(top.Fd()))
}

// finishDir sets the attributes of a directory.
func (t *tree) finishDir(dir string) error {
	a := t.dirs[dir]
	if err := t.root.Chown(dir, 0, 0); err != nil {
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
