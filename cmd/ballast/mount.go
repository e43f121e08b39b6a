package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (a *app) mountCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "mount REF|DIGEST DIR",
		Short: "mount a model for processes outside of containers",
		Long: `Mount the files of a model read-only at an empty directory, for processes outside of containers: vLLM, llama.cpp,
LocalAI. A model that is not complete can be mounted if lazy.mode lets containers read it; reads of missing
bytes wait for them.

A mounted model is not removed from the node. The mount stays when ballastd stops, and complete models are read
without it. The mount ends with "ballast unmount" or a restart of the machine, which does not restore it. Every
user who can enter the directory can read the files. "ballast mount ls" lists the mounts.`,
		Example: "  ballast mount docker.io/ai/smollm2 /srv/models/smollm2\n  ballast unmount /srv/models/smollm2",
		Args: cobra.MatchAll(numberOfArgs(2, 2, "a model and a directory expected; \"ballast mount ls\" lists mounts"),
			func(_ *cobra.Command, args []string) error { return names(args[:1]) }),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return a.completes(1, modelRefs)(cmd, args, word)
		},
	}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		dir, err := mountPoint(args[1])
		if err != nil {
			return err
		}
		return a.mount(cmd.Context(), cl, wire.MountRequest{Name: args[0], Dir: dir}, *out)
	})
	c.AddCommand(a.mountLsCommand())
	return c
}

func (a *app) pathCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "path REF|DIGEST",
		Short: "print a directory with the files of a model, for processes outside of containers",
		Long: `Print a directory that has the files of a model under their own names. The first call mounts it, as "ballast
mount" does, in the directory of the sockets, which only root can enter. The model is not removed from the node
until "ballast unmount $(ballast path REF)".`,
		Example:           "  llama-server -m \"$(ballast path docker.io/ai/smollm2)/model.gguf\"",
		Args:              modelNames(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		return a.mount(cmd.Context(), cl, wire.MountRequest{Name: args[0]}, *out)
	})
	return c
}

func (a *app) unmountCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "unmount DIR...",
		Aliases: []string{"umount"},
		Short:   "unmount directories of \"mount\" and \"path\"",
		Long: `Unmount directories of "ballast mount" and "ballast path", and release their models. A mount that a process
uses stays: the error is "device or resource busy". If a mount ends in another way, ballastd notices within a
minute.`,
		Args: numberOfArgs(1, 0, "a directory expected; \"ballast mount ls\" lists mounts"),
		ValidArgsFunction: a.completes(0, func(ctx context.Context, cl *wire.Client) (dirs []string) {
			mounts, _ := cl.Mounts(ctx)
			for _, m := range mounts {
				dirs = append(dirs, m.Dir)
			}
			return dirs
		}),
		RunE: a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
			return each(a, args, func(dir string) error { return unmountModel(cmd.Context(), cl, dir) })
		}),
	}
}

// mountPoint returns the real path of a directory, which must exist and be empty, unless it is a
// mount point.
func mountPoint(dir string) (string, error) {
	path, err := realPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", usage("%s: no such directory; make it first", dir)
	}
	if err != nil {
		return "", usage("%w", err)
	}
	dir = path
	if at, err := mountedAt(dir); err != nil || at != nil {
		return dir, err
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return "", usage("%w", err)
	case len(entries) > 0:
		return "", usage("%s is not empty", dir)
	}
	return dir, nil
}

// realPath returns the absolute path of an existing file, without symbolic links.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// mountedAt returns the mount at a directory, or nil.
func mountedAt(dir string) (*mountinfo.Info, error) {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[len(found)-1], nil
}

// mountModel requests a mount from the daemon and makes it, unless it exists.
func mountModel(ctx context.Context, cl *wire.Client, r wire.MountRequest) (wire.Mount, error) {
	m, err := cl.Mount(ctx, r)
	if err != nil {
		return m, err
	}
	unlock, err := lockDir(ctx, m.Dir)
	if err != nil {
		return m, err
	}
	defer unlock()
	at, err := mountedAt(m.Dir)
	switch {
	case err != nil:
		return m, err
	case at != nil && shows(at, m):
		m.Mounted = true
		return m, nil
	case at != nil:
		return m, fmt.Errorf("something else is mounted at %s: %w", m.Dir, errdefs.ErrAlreadyExists)
	}
	made := mount.Mount{Type: m.Type, Source: m.Source, Options: m.Options}
	if err := made.Mount(m.Dir); err != nil {
		return m, fmt.Errorf("mount at %s: %w", m.Dir, err)
	}
	// If the mount took too long, the daemon has released the model.
	all, err := cl.Mounts(ctx)
	if err == nil && !slices.ContainsFunc(all, func(o wire.Mount) bool { return o.Snapshot == m.Snapshot }) {
		err = fmt.Errorf("ballastd has released the model meanwhile, try again: %w", errdefs.ErrUnavailable)
	}
	if errdefs.IsUnavailable(err) {
		return m, errors.Join(err, unix.Unmount(m.Dir, 0))
	}
	m.Mounted = true
	return m, err
}

// lockTimeout limits the wait for a lock, which every user who can open a directory can hold. The daemon releases a
// model that is not mounted within a minute.
const lockTimeout = 30 * time.Second

// lockDir serializes mounts at a directory. A command that starts after the mount locks the mount's
// root, and finds it mounted.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockTimeout, fmt.Errorf("another process has locked it for %v, which lslocks names: %w", lockTimeout, errdefs.ErrUnavailable))
	defer cancel()
	if err := durable.Lock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// shows reports whether a mount is made of the snapshot of m.
func shows(at *mountinfo.Info, m wire.Mount) bool {
	if m.Type == "overlay" {
		return at.FSType == m.Type && at.Source == m.Source
	}
	return strings.HasSuffix(at.Root, "/snapshots/"+m.Snapshot+"/fs")
}

// unmountModel removes the mount at a directory and reports it to the daemon.
func unmountModel(ctx context.Context, cl *wire.Client, dir string) error {
	path, err := realPath(dir)
	if err != nil {
		if path, err = filepath.Abs(dir); err != nil { // a mount without a server, or a directory that is gone
			return err
		}
	}
	all, err := cl.Mounts(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(m wire.Mount) bool { return m.Dir == path }) {
		return fmt.Errorf("no model is mounted at %s: %w", path, errdefs.ErrNotFound)
	}
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return cl.Unmounted(ctx, path)
}

// mount mounts a model and prints its directory.
func (a *app) mount(ctx context.Context, cl *wire.Client, r wire.MountRequest, out output) error {
	m, err := mountModel(ctx, cl, r)
	if err != nil {
		return err
	}
	if out == outJSON {
		return a.printJSON(m)
	}
	_, err = fmt.Fprintln(a.stdout, m.Dir) // byte for byte, for scripts
	return err
}

func (a *app) mountLsCommand() *cobra.Command {
	c := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "list mounts", Args: noArgs("")}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		all, err := cl.Mounts(cmd.Context())
		if err != nil {
			return err
		}
		return a.mounts(all, *out)
	})
	return c
}

// mounts prints mounts.
func (a *app) mounts(all []wire.Mount, out output) error {
	dirs, rows := []string{}, [][]string{{"DIRECTORY", "MODEL", "SINCE", "STATE"}}
	for _, m := range all {
		dirs = append(dirs, m.Dir)
		state := "mounted"
		if !m.Mounted {
			state = "not mounted"
		}
		rows = append(rows, []string{m.Dir, m.Name, ago(m.Created), state})
	}
	return a.show(out, all, dirs, rows)
}
