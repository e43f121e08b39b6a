package snapshotter

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Models without layers.
//
// A model pulled by the digest of its original manifest has no layers for containerd. Its image
// volume is a snapshot without a parent, whose key ends in the digest of the manifest.
// Options.Volume shows the model in that snapshot, which stays active and is mounted as a read-only
// view of itself. It has a marker and a label and is inspected like a committed one. Image volumes
// that Options.Volume does not show, and keys in an unknown form, are refused: they would be empty
// directories. Options.Bare can refuse other snapshots without a parent that are not for unpacking.

// imageVolumes is part of the key of every snapshot that the CRI plugin makes for an image volume.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/helpers.go
const imageVolumes = "/image-volumes/"

// volumeKey is the end of such a key, from containerd 2.1.0 to 2.4.2: the id of the sandbox and the
// digest of the image's target.
var volumeKey = regexp.MustCompile(`/io\.containerd\.grpc\.v1\.cri` + imageVolumes + `[0-9a-f]{64}/([0-9a-f]{64})$`)

// volumeOf returns the digest of the image whose volume has the key; false for a key in another
// form.
func volumeOf(key string) (digest.Digest, bool) {
	m := volumeKey.FindStringSubmatch(key)
	if m == nil {
		return "", false
	}
	return digest.NewDigestFromEncoded(digest.SHA256, m[1]), true
}

// isVolume reports whether a key is that of an image volume, in any version.
func isVolume(key string) bool { return strings.Contains(key, imageVolumes) }

// clientKey returns the key chosen by a client of containerd. The snapshotter gets
// <namespace>/<number>/<key>.
func clientKey(key string) string {
	parts := strings.SplitN(key, "/", 3)
	return parts[len(parts)-1]
}

// prepareVolume makes the snapshot of an image volume of a model that containerd has no layers of,
// with Options.Volume. It shows the model read-only and has no parent.
func (s *Snapshotter) prepareVolume(ctx context.Context, key string, opts []snapshots.Opt) ([]mount.Mount, error) {
	manifest, ok := volumeOf(key)
	if !ok || s.volume == nil {
		return nil, errEmptyVolume(key)
	}
	mounts, err := s.prepareAlone(ctx, key, opts, func(ctx context.Context, id string) error { return s.volume(ctx, manifest, id) })
	if err != nil {
		return nil, fmt.Errorf("image volume: %w", err)
	}
	return mounts, nil
}

// prepareAlone makes an active snapshot without a parent that shows a model read-only. If show
// fails, it removes the snapshot.
func (s *Snapshotter) prepareAlone(ctx context.Context, key string, opts []snapshots.Opt, show func(ctx context.Context, id string) error) ([]mount.Mount, error) {
	plain, err := s.overlay.Prepare(ctx, key, "", opts...)
	if err != nil {
		return nil, err
	}
	mounts, err := s.showAlone(ctx, key, plain, show)
	if err == nil {
		return mounts, nil
	}
	if rerr := s.Remove(context.WithoutCancel(ctx), key); rerr != nil {
		return nil, fmt.Errorf("%w; remove %q: %w", err, key, rerr)
	}
	return nil, err
}

func (s *Snapshotter) showAlone(ctx context.Context, key string, plain []mount.Mount, show func(ctx context.Context, id string) error) ([]mount.Mount, error) {
	id, _, err := s.info(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := show(ctx, id); err != nil {
		return nil, err
	}
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return nil, err
	}
	if err := s.label(ctx, key, m.shows()); err != nil {
		return nil, err
	}
	return s.mounts(ctx, key, plain)
}

// asVolume turns the chain of an image volume without parents, or of a host mount, into a view of
// the snapshot itself. It returns errdefs.ErrFailedPrecondition if it shows no model: it would be
// an empty directory.
func (s *Snapshotter) asVolume(c *chain, key string) error {
	own, err := s.checkedMarker(c.ID, c.labels[labelShows])
	if err != nil {
		return err
	}
	if own.Table == "" {
		return errEmptyVolume(key)
	}
	c.Kind, c.ParentIDs, c.parents = snapshots.KindView, []string{c.ID}, []marker{own}
	return nil
}

// checkBare calls Options.Bare for a snapshot without a parent that is not for unpacking: clients
// make such snapshots to mount an image without layers.
func (s *Snapshotter) checkBare(ctx context.Context, key, parent string) error {
	if s.bare == nil || parent != "" || isUnpack(key) {
		return nil
	}
	return s.bare(ctx)
}

// isUnpack reports whether a snapshot is for unpacking a layer.
func isUnpack(key string) bool {
	return strings.HasPrefix(clientKey(key), snapshots.UnpackKeyPrefix+"-")
}

func errEmptyVolume(key string) error {
	return fmt.Errorf("image volume %q: the image has no files to mount; a model must be pulled by tag through the ballast facade, "+
		"or by the digest of the converted image (\"ballast digest REF\"): %w", filepath.Base(key), errdefs.ErrFailedPrecondition)
}
