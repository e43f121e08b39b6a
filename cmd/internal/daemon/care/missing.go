package care

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/origins"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Snapshots are the snapshots of the daemon, beside containerd's records of them.
type Snapshots struct {
	Store       *store.Store
	Snapshotter *snapshotter.Snapshotter
	Containerd  *ctrd.Client
	Origins     *origins.Origins
	Address     string // of the socket at which containerd asks for snapshots
	Log         *slog.Logger
}

// Refresh implements Verifier.
func (s *Snapshots) Refresh(ctx context.Context, table digest.Digest) error {
	return s.Snapshotter.Refresh(ctx, table)
}

// Verify implements Verifier.
func (s *Snapshots) Verify(ctx context.Context, table digest.Digest) ([]wire.SnapshotProblem, error) {
	problems, err := s.Snapshotter.Verify(ctx, table)
	all := translate.Problems(problems)
	if err != nil || table != "" {
		return all, err
	}
	missing, err := s.Missing(ctx)
	if err != nil { // containerd may be down
		s.Log.WarnContext(ctx, "snapshots are not compared with those of containerd", "err", err)
	}
	return append(all, missing...), nil
}

// A lost is what containerd has recorded in a namespace, for this daemon, and does not exist.
type lost struct {
	namespace string
	name      string                // of the snapshotter
	theirs    snapshots.Snapshotter // the snapshots of containerd
	keys      []string
	unpacks   []string // keys of layers that were unpacked (isUnpacked), not in keys
}

// eachMissing calls do for each namespace with snapshots that do not exist (snapshotter.Missing). ctx of do
// has the namespace.
func (s *Snapshots) eachMissing(ctx context.Context, do func(ctx context.Context, l lost) error) error {
	name, err := s.Name(ctx)
	if err != nil || name == "" { // containerd has none that is this daemon
		return err
	}
	theirs := s.Containerd.Snapshots(name)
	return s.Containerd.EachNamespace(ctx, func(ctx context.Context, ns string) error {
		names, err := s.Snapshotter.Missing(func() error {
			return theirs.Walk(ctx, func(context.Context, snapshots.Info) error { return nil })
		})
		if err != nil {
			return fmt.Errorf("snapshots of containerd's namespace %s: %w", ns, err)
		}
		for i := range names { // the snapshots of blob layers have the same name in all namespaces
			names[i] = KeyOf(names[i], ns)
		}
		unpacks := slices.DeleteFunc(slices.Clone(names), func(key string) bool { return !isUnpacked(key) })
		names = slices.DeleteFunc(names, isUnpacked)
		if len(names) == 0 {
			return nil
		}
		return do(ctx, lost{ns, name, theirs, names, unpacks})
	})
}

// KeyOf returns the key with which containerd has recorded a snapshot in a namespace.
// https://github.com/containerd/containerd/blob/v2.4.2/core/metadata/snapshot.go
func KeyOf(name, namespace string) string {
	if rest, ok := strings.CutPrefix(name, namespace+"/"); ok {
		if _, key, ok := strings.Cut(rest, "/"); ok {
			return key
		}
	}
	return name
}

// isUnpacked reports whether a key is of a snapshot into which a layer is unpacked. containerd records its
// commit after the snapshotter has done it, so a pull, or a crash between the two, leaves the old key. It
// refuses no pull, and containerd forgets it with the lease of the pull.
func isUnpacked(key string) bool { return strings.HasPrefix(key, snapshots.UnpackKeyPrefix+"-") }

// Name returns the name of the snapshotter of containerd that is this daemon, or "".
func (s *Snapshots) Name(ctx context.Context) (string, error) {
	return s.Containerd.SnapshotterAt(ctx, s.Address)
}

// Missing describes the snapshots that containerd has recorded and that do not exist.
func (s *Snapshots) Missing(ctx context.Context) (problems []wire.SnapshotProblem, err error) {
	err = s.eachMissing(ctx, func(_ context.Context, l lost) error {
		problems = append(problems, wire.SnapshotProblem{
			Snapshot: l.keys[0], Path: "namespace " + l.namespace,
			Problem: fmt.Sprintf("containerd has recorded %d snapshots that do not exist: the root was wiped, or its disk is not mounted; images with their layers cannot be pulled (\"already exists\")", len(l.keys)),
		})
		return nil
	})
	return problems, err
}

// retry is the interval between attempts to reach containerd.
const retry = 5 * time.Second

// ForgetLost is Forget when containerd answers. It returns when that is done, or ctx ends.
func (s *Snapshots) ForgetLost(ctx context.Context) {
	said := ""
	for {
		err := s.Forget(ctx)
		if err == nil {
			return
		}
		if said != err.Error() {
			said = err.Error()
			s.Log.WarnContext(ctx, "containerd may have records of snapshots that are lost", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// Forget removes these records from containerd.
func (s *Snapshots) Forget(ctx context.Context) error {
	return s.eachMissing(ctx, func(ctx context.Context, l lost) error {
		var errs []error
		keys, unpacks := slices.Clone(l.keys), l.unpacks
		for before := -1; len(keys) > 0; { // a snapshot cannot be removed before those above it
			if before == len(keys) {
				if len(unpacks) == 0 {
					break
				}
				keys, unpacks = append(keys, unpacks...), nil // above one that is lost, so no pull needs them
			}
			before, errs = len(keys), nil
			keys = slices.DeleteFunc(keys, func(key string) bool {
				err := l.theirs.Remove(ctx, key)
				if err == nil || errdefs.IsNotFound(err) {
					return true
				}
				errs = append(errs, fmt.Errorf("remove the record of snapshot %s from containerd's namespace %s: %w", key, l.namespace, err))
				return false
			})
		}
		s.Log.WarnContext(ctx, "records of snapshots that do not exist were removed from containerd", "namespace", l.namespace, "left", len(keys))
		err := s.unreference(ctx, l)
		if err == nil && len(keys) == 0 {
			return nil
		}
		if err == nil { // its collector forgets a child, and not that the parent has one: it alone removes that
			err = s.Containerd.Collect(ctx)
		}
		if err != nil {
			errs = append(errs, err)
			return errors.Join(errs...)
		}
		return nil
	})
}

// unreference removes what makes containerd keep the records of snapshots that do not exist: entries of
// leases, such as those of interrupted pulls, and the labels by which images are unpacked.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/garbage-collection.md
func (s *Snapshots) unreference(ctx context.Context, of lost) error {
	isLost := func(key string) bool { return slices.Contains(of.keys, key) }
	err := s.Containerd.EachLease(ctx, of.name, isLost, func(l leases.Lease, held []leases.Resource) error {
		for _, r := range held {
			if err := s.Containerd.Leases.DeleteResource(ctx, l, r); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	unpacked, err := s.Containerd.Unpacked(ctx, of.name)
	for config, key := range unpacked {
		if err == nil && isLost(key) {
			err = s.Containerd.NotUnpacked(ctx, of.name, config)
		}
	}
	return err
}
