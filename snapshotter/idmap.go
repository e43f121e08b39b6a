package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// User namespaces.
//
// The mounts of a snapshot with ID mapping labels have the options uidmap and gidmap. containerd
// id-maps the directory above all lower layers, including the mounts in it, and gives the kernel the
// first list of lower directories; an image with a top-level file that <hide> would hide is refused.
//
// All listed directories must be below one directory with little else in it, on file systems that
// can be id-mapped. FUSE can be from Linux 6.12 on; the lazy mount is then below the root. Before
// that it is elsewhere, so that complete models can be mounted, and a snapshot that needs it is
// refused with errdefs.ErrUnavailable until its model is complete.
//
// A mapping is accepted for containers and image volumes only, not for image layers, whose labels
// come from annotations. A containerd without the capability "remap-ids" copies all files with new
// owners first; such a parent is recognized by its owner and is not mapped again.

// asLayer returns opts without an ID mapping if labels are those of an image layer: an image must
// not choose the owner of its files on the node. Some containerd versions pass on all labels in
// annotations.
func asLayer(labels map[string]string, opts []snapshots.Opt) []snapshots.Opt {
	_, layer := labels[snapshots.LabelSnapshotRef]
	_, uids := labels[snapshots.LabelSnapshotUIDMapping]
	_, gids := labels[snapshots.LabelSnapshotGIDMapping]
	if !layer || !uids && !gids {
		return opts
	}
	return append(opts[:len(opts):len(opts)], func(info *snapshots.Info) error {
		delete(info.Labels, snapshots.LabelSnapshotUIDMapping)
		delete(info.Labels, snapshots.LabelSnapshotGIDMapping)
		return nil
	})
}

// mapping returns the mount options that make containerd id-map a mount.
func mapping(mounts []mount.Mount) (options []string) {
	for _, m := range mounts {
		for _, o := range m.Options {
			if k, _, _ := strings.Cut(o, "="); k == "uidmap" || k == "gidmap" {
				options = append(options, o)
			}
		}
	}
	return options
}

// mapped returns overlay's mounts of a snapshot with parent and labels. It removes the ID mapping
// if the files of the parent already have the mapped owners: a containerd without the capability
// "remap-ids" for this snapshotter makes such a copy of each image.
func (s *Snapshotter) mapped(ctx context.Context, parent string, labels map[string]string, plain []mount.Mount) ([]mount.Mount, error) {
	if parent == "" || len(mapping(plain)) == 0 {
		return plain, nil
	}
	id, info, err := s.info(ctx, parent)
	if err != nil {
		return nil, err
	}
	if _, layer := info.Labels[snapshots.LabelSnapshotRef]; layer {
		return plain, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(s.upperDir(id), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", s.upperDir(id), err)
	}
	uid, gid := rootOf(labels[snapshots.LabelSnapshotUIDMapping]), rootOf(labels[snapshots.LabelSnapshotGIDMapping])
	if uid > 0 && gid > 0 && uint32(uid) == st.Uid && uint32(gid) == st.Gid {
		return mount.RemoveIDMapOption(plain), nil
	}
	return plain, nil
}

// rootOf returns the host id of user or group 0 in a label "container:host:size,…", or -1.
func rootOf(label string) int64 {
	for m := range strings.SplitSeq(label, ",") {
		if f := strings.Split(m, ":"); len(f) == 3 && f[0] == "0" {
			if id, err := strconv.ParseUint(f[1], 10, 32); err == nil {
				return int64(id)
			}
		}
	}
	return -1
}

// checkMapped returns errdefs.ErrFailedPrecondition if id-mapped mounts would hide a file of the
// parents. containerd makes these mounts from the first list of lower directories, see
// lowerOptions.
func (s *Snapshotter) checkMapped(ids []string) error {
	for _, id := range ids {
		top := filepath.Base(whiteout(s.hideDir()))
		if _, err := os.Lstat(filepath.Join(s.upperDir(id), top)); err == nil {
			return fmt.Errorf("an image with %q at its top cannot be shown to a user namespace: %w", top, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// ProbeUsers checks that a file can be shown with mapped owners, using a mount that is gone on
// return. dir is a directory on the file system of the snapshots.
func ProbeUsers(dir string) error { return probe(dir, probeUsers) }

func probeUsers(dir string) (err error) {
	if err := Mountable(dir); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"a", "b", "mnt"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(at("a/file"), nil, 0o644); err != nil {
		return err
	}
	const host = 1 << 16
	users := fmt.Sprintf("map=0:%d:1", host)
	lower := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + at("a") + ":" + at("b"), "uid" + users, "gid" + users}}
	if err := lower.Mount(at("mnt")); err != nil {
		return fmt.Errorf("mount overlay with lower layers of other users: %w", err)
	}
	defer func() { err = errors.Join(err, mount.UnmountAll(at("mnt"), unix.MNT_DETACH)) }()
	var st unix.Stat_t
	if err := unix.Stat(at("mnt/file"), &st); err != nil {
		return err
	}
	if st.Uid != host || st.Gid != host {
		return fmt.Errorf("a file of user 0 belongs to %d:%d and not to %d: %w", st.Uid, st.Gid, host, errdefs.ErrNotImplemented)
	}
	return nil
}
