package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/node"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/go-digest"
)

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
func (d *Daemon) eachMissing(ctx context.Context, do func(ctx context.Context, l lost) error) error {
	name, err := d.snapshotterName(ctx)
	if err != nil || name == "" { // containerd has none that is this daemon
		return err
	}
	theirs := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(d.containerd), name)
	return node.EachNamespace(ctx, d.containerd, func(ctx context.Context, ns string) error {
		names, err := d.snapshotter.Missing(func() error {
			return theirs.Walk(ctx, func(context.Context, snapshots.Info) error { return nil })
		})
		if err != nil {
			return fmt.Errorf("snapshots of containerd's namespace %s: %w", ns, err)
		}
		for i := range names { // the snapshots of blob layers have the same name in all namespaces
			names[i] = keyOf(names[i], ns)
		}
		unpacks := slices.DeleteFunc(slices.Clone(names), func(key string) bool { return !isUnpacked(key) })
		names = slices.DeleteFunc(names, isUnpacked)
		if len(names) == 0 {
			return nil
		}
		return do(ctx, lost{ns, name, theirs, names, unpacks})
	})
}

// keyOf returns the key with which containerd has recorded a snapshot in a namespace.
// https://github.com/containerd/containerd/blob/v2.4.2/core/metadata/snapshot.go
func keyOf(name, namespace string) string {
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

// snapshotterName returns the name of the snapshotter of containerd that is this daemon, or "".
func (d *Daemon) snapshotterName(ctx context.Context) (string, error) {
	all, err := node.Plugins(ctx, d.containerd, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", fmt.Errorf("plugins of containerd: %w", errgrpc.ToNative(err))
	}
	for _, p := range all {
		if p.InitErr == nil && strings.TrimPrefix(p.Exports["address"], "unix://") == d.config.Address {
			return p.ID, nil
		}
	}
	return "", nil
}

// missing describes the snapshots that containerd has recorded and that do not exist.
func (d *Daemon) missing(ctx context.Context) (problems []wire.SnapshotProblem, err error) {
	err = d.eachMissing(ctx, func(_ context.Context, l lost) error {
		problems = append(problems, wire.SnapshotProblem{
			Snapshot: l.keys[0], Path: "namespace " + l.namespace,
			Problem: fmt.Sprintf("containerd has recorded %d snapshots that do not exist: the root was wiped, or its disk is not mounted; images with their layers cannot be pulled (\"already exists\")", len(l.keys)),
		})
		return nil
	})
	return problems, err
}

// forgetMissing removes these records from containerd.
func (d *Daemon) forgetMissing(ctx context.Context) error {
	return d.eachMissing(ctx, func(ctx context.Context, l lost) error {
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
		d.log.WarnContext(ctx, "records of snapshots that do not exist were removed from containerd", "namespace", l.namespace, "left", len(keys))
		err := d.unreference(ctx, l)
		if err == nil && len(keys) == 0 {
			return nil
		}
		if err == nil { // its collector forgets a child, and not that the parent has one: it alone removes that
			err = d.collect(ctx)
		}
		if err != nil {
			errs = append(errs, errgrpc.ToNative(err))
			return errors.Join(errs...)
		}
		return nil
	})
}

// unreference removes what makes containerd keep the records of snapshots that do not exist: entries of
// leases, such as those of interrupted pulls, and the labels by which images are unpacked.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/garbage-collection.md
func (d *Daemon) unreference(ctx context.Context, of lost) error {
	leases := leasesapi.NewLeasesClient(d.containerd)
	isLost := func(key string) bool { return slices.Contains(of.keys, key) }
	err := d.eachLease(ctx, of.name, isLost, func(id string, held []*leasesapi.Resource) error {
		for _, r := range held {
			if _, err := leases.DeleteResource(ctx, &leasesapi.DeleteResourceRequest{ID: id, Resource: r}); err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	unpacked, err := d.unpackedAs(ctx, of.name, isLost)
	label := snapshotLabel(of.name)
	for _, config := range unpacked {
		if err == nil {
			_, err = contentproxy.NewContentStore(d.containerd).Update(ctx, content.Info{Digest: config, Labels: map[string]string{label: ""}}, "labels."+label)
		}
	}
	return err
}

// eachLease calls do with each lease that holds snapshots of a snapshotter whose keys are chosen, and with these.
func (d *Daemon) eachLease(ctx context.Context, snapshotter string, chosen func(key string) bool, do func(id string, held []*leasesapi.Resource) error) error {
	leases := leasesapi.NewLeasesClient(d.containerd)
	list, err := leases.List(ctx, &leasesapi.ListRequest{})
	if err != nil {
		return err
	}
	for _, l := range list.Leases {
		all, err := leases.ListResources(ctx, &leasesapi.ListResourcesRequest{ID: l.ID})
		if errdefs.IsNotFound(errgrpc.ToNative(err)) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		held := slices.DeleteFunc(all.Resources, func(r *leasesapi.Resource) bool { return r.Type != "snapshots/"+snapshotter || !chosen(r.ID) })
		if len(held) == 0 {
			continue
		}
		if err := do(l.ID, held); err != nil {
			return err
		}
	}
	return nil
}

// snapshotLabel returns the label by which a config refers to its snapshot of a snapshotter.
func snapshotLabel(snapshotter string) string { return "containerd.io/gc.ref.snapshot." + snapshotter }

// unpackedAs returns the configs of images that are unpacked as snapshots whose keys are chosen.
func (d *Daemon) unpackedAs(ctx context.Context, snapshotter string, chosen func(key string) bool) (configs []digest.Digest, err error) {
	label := snapshotLabel(snapshotter)
	err = contentproxy.NewContentStore(d.containerd).Walk(ctx, func(i content.Info) error {
		if chosen(i.Labels[label]) {
			configs = append(configs, i.Digest)
		}
		return nil
	}, fmt.Sprintf("labels.%q", label))
	return configs, err
}

// collect waits for a garbage collection of containerd.
func (d *Daemon) collect(ctx context.Context) error {
	leases := leasesapi.NewLeasesClient(d.containerd)
	l, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: "ballast-" + rand.Text()})
	if err == nil {
		_, err = leases.Delete(ctx, &leasesapi.DeleteRequest{ID: l.Lease.ID, Sync: true})
	}
	return err
}
