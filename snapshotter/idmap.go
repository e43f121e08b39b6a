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

// asLayer returns opts without a mapping of users if they are those of an image's layer, with these labels: an
// image must not decide who owns it on the node. Some versions of containerd hand on all labels of its annotations.
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

// mapping returns the options that have containerd map the users of mounts.
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

// mapped returns the mounts that overlay gives for a snapshot with parent and labels, without the mapping of users
// if the files of the parent have been given to these users before: a containerd that has not been told that we
// map users (capabilities = ["remap-ids"]) makes such a copy of each image itself.
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

// rootOf returns who user or group 0 is on the host, by a label "container:host:size,…"; -1 if nobody.
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

// checkMapped returns errdefs.ErrFailedPrecondition if the parents have something that mounts with a mapping of
// users would hide. containerd makes them of the list that it can read, see lowerOptions.
func (s *Snapshotter) checkMapped(ids []string) error {
	for _, id := range ids {
		top := filepath.Base(whiteout(s.hideDir()))
		if _, err := os.Lstat(filepath.Join(s.upperDir(id), top)); err == nil {
			return fmt.Errorf("an image with %q at its top can not be shown to a user namespace: %w", top, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// ProbeUsers tries to show a file to a user namespace as its own, with a mount that is gone on return. dir is a directory on
// the file system of the snapshots. The error says why it does not work.
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
