package snapshotter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// recordName is a file beside fs/ with the record of the snapshot in overlay's metadata.
const recordName = "record.json"

// maxRecord limits the size of a record, in bytes. Labels are most of it; containerd limits each to
// 4 KiB.
const maxRecord = 1 << 20 // 1 MiB

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A record is what overlay's metadata have of a snapshot, besides its id.
type record struct {
	Name    string            `json:"name,omitempty"` // the key of an active snapshot or view
	Parent  string            `json:"parent,omitempty"`
	Kind    snapshots.Kind    `json:"kind"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created,omitzero"`
	Updated time.Time         `json:"updated,omitzero"`
	Inodes  int64             `json:"inodes,omitempty"`
	Size    int64             `json:"size,omitempty"` // bytes

	// Removed is true if the snapshot was removed; its directory stays until the next Cleanup.
	Removed bool `json:"removed,omitempty"`
}

// encode returns the content of the file: a checksum (CRC-32C) and the record as JSON.
func (r record) encode() ([]byte, error) {
	p, err := json.Marshal(r)
	return append(fmt.Appendf(nil, "%08x\n", crc32.Checksum(p, castagnoli)), p...), err
}

// readRecord returns the record in the directory of a snapshot. It returns errdefs.ErrDataLoss for a
// damaged one, and fs.ErrNotExist if there is none.
func readRecord(dir string) (r record, err error) {
	f, err := os.Open(filepath.Join(dir, recordName))
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return record{}, err
	}
	if len(p) <= maxRecord {
		r, err = decodeRecord(p)
	} else {
		err = errors.New("too large")
	}
	if err != nil {
		return record{}, fmt.Errorf("%s of snapshot %s: %w: %w", recordName, filepath.Base(dir), err, errdefs.ErrDataLoss)
	}
	return r, nil
}

func decodeRecord(p []byte) (r record, err error) {
	sum, p, _ := bytes.Cut(p, []byte("\n"))
	if string(sum) != fmt.Sprintf("%08x", crc32.Checksum(p, castagnoli)) {
		return record{}, errors.New("wrong checksum")
	}
	if err := json.Unmarshal(p, &r); err != nil {
		return record{}, err
	}
	if r.Removed {
		return record{Removed: true}, nil
	}
	if r.Name == "" || r.Kind < snapshots.KindView || r.Kind > snapshots.KindCommitted || r.Inodes < 0 || r.Size < 0 {
		return record{}, errors.New("incomplete")
	}
	return r, nil
}

// A recorder is overlay, and keeps the record of each snapshot beside its files, so that lost metadata
// can be rebuilt. Records are not synced, because the metadata are: those that a power cut has lost are
// written again at the next start (keepRecords).
type recorder struct {
	overlaySnapshotter
	meta *storage.MetaStore
	dir  string // of the snapshots
	log  *slog.Logger
}

func (r *recorder) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := r.overlaySnapshotter.Prepare(ctx, key, parent, opts...)
	if err == nil {
		r.keep(ctx, key)
	}
	return mounts, err
}

func (r *recorder) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := r.overlaySnapshotter.View(ctx, key, parent, opts...)
	if err == nil {
		r.keep(ctx, key)
	}
	return mounts, err
}

func (r *recorder) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	err := r.overlaySnapshotter.Commit(ctx, name, key, opts...)
	if err == nil {
		r.keep(ctx, name)
	}
	return err
}

func (r *recorder) Update(ctx context.Context, info snapshots.Info, fieldpaths ...string) (snapshots.Info, error) {
	info, err := r.overlaySnapshotter.Update(ctx, info, fieldpaths...)
	if err == nil {
		r.keep(ctx, info.Name)
	}
	return info, err
}

func (r *recorder) Remove(ctx context.Context, key string) error {
	id, _, err := r.record(ctx, key)
	if err != nil {
		return err
	}
	if err := r.overlaySnapshotter.Remove(ctx, key); err != nil {
		return err
	}
	r.write(ctx, id, record{Removed: true})
	return nil
}

// record returns the id and the record of a snapshot from the metadata.
func (r *recorder) record(ctx context.Context, key string) (id string, rec record, err error) {
	err = r.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		var info snapshots.Info
		var used snapshots.Usage
		id, info, used, err = storage.GetInfo(ctx, key)
		rec = record{
			Name: key, Parent: info.Parent, Kind: info.Kind, Labels: info.Labels, Created: info.Created.UTC(), Updated: info.Updated.UTC(),
			Inodes: used.Inodes, Size: used.Size,
		}
		return err
	})
	return id, rec, err
}

// keep writes the record of a snapshot if it differs.
func (r *recorder) keep(ctx context.Context, key string) {
	id, rec, err := r.record(ctx, key)
	switch {
	case errdefs.IsNotFound(err): // removed meanwhile
	case err != nil:
		r.log.WarnContext(ctx, "snapshot has no record", "key", key, "err", err)
	default:
		r.write(ctx, id, rec)
	}
}

// write writes a record if it differs. The snapshot does not depend on that, so errors are only logged.
func (r *recorder) write(ctx context.Context, id string, rec record) {
	p, err := rec.encode()
	if err == nil {
		err = replace(filepath.Join(r.dir, id, recordName), p)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the directory was removed meanwhile
		r.log.WarnContext(ctx, "record of a snapshot cannot be written: if the metadata are lost, the snapshot is lost too", "snapshot", id, "err", err)
	}
}

// replace makes p the content of a file, without syncing.
func replace(path string, p []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, p) {
		return nil
	}
	fresh := path + ".new"
	err := os.WriteFile(fresh, p, 0o600)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		_ = os.Remove(fresh) // replaced by the next write
	}
	return err
}

// keepRecords writes the records that are missing or outdated, as after a power cut.
func (s *Snapshotter) keepRecords(ctx context.Context) error {
	var ids map[string]string
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		ids, err = storage.IDMap(ctx)
		return err
	})
	if errdefs.IsNotFound(err) { // there was never a snapshot
		return nil
	}
	for _, key := range ids {
		s.overlay.keep(ctx, key)
	}
	return err
}

// readRecords returns the records of the directories in dir, by id. Those without a valid one are zero.
func readRecords(dir string) (map[uint64]record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	found := map[uint64]record{}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 64)
		if err != nil {
			continue
		}
		found[id] = record{}
		info, err := os.Lstat(filepath.Join(dir, e.Name(), "fs"))
		if err != nil || !info.IsDir() {
			continue
		}
		if r, err := readRecord(filepath.Join(dir, e.Name())); err == nil {
			found[id] = r
		}
	}
	return found, nil
}

// rebuild adds the snapshots that the metadata do not have, from their records. It returns the number of
// those that were added, and the ids of those that were not.
func rebuild(tx *bbolt.Tx, found map[uint64]record) (added int, lost []uint64, err error) {
	sb, pb := tx.Bucket(bucketVersion).Bucket(bucketSnapshots), tx.Bucket(bucketVersion).Bucket(bucketParents)
	if err := sb.ForEachBucket(func(name []byte) error {
		id, _ := binary.Uvarint(sb.Bucket(name).Get(keyID))
		delete(found, id)
		return nil
	}); err != nil {
		return 0, nil, err
	}
	maps.DeleteFunc(found, func(_ uint64, r record) bool { return r.Removed })
	latest := map[string]uint64{} // by name: a crash can leave the record of a removed snapshot
	for id, r := range found {
		latest[r.Name] = max(latest[r.Name], id)
	}
	for more := true; more; { // parents first
		more = false
		for _, id := range slices.Sorted(maps.Keys(found)) {
			r := found[id]
			if r.Name == "" || latest[r.Name] != id || sb.Bucket([]byte(r.Name)) != nil {
				continue
			}
			if r.Parent != "" && !isCommitted(sb.Bucket([]byte(r.Parent))) {
				continue
			}
			if err := insert(sb, pb, id, r); err != nil {
				return added, nil, fmt.Errorf("snapshot %d: %w", id, err)
			}
			delete(found, id)
			added, more = added+1, true
		}
	}
	return added, slices.Sorted(maps.Keys(found)), nil
}

func isCommitted(b *bbolt.Bucket) bool {
	return b != nil && bytes.Equal(b.Get(keyKind), []byte{byte(snapshots.KindCommitted)})
}

// insert adds a snapshot to the metadata.
func insert(sb, pb *bbolt.Bucket, id uint64, r record) error {
	b, err := sb.CreateBucket([]byte(r.Name))
	if err != nil {
		return err
	}
	values := map[string][]byte{
		string(keyID):   binary.AppendUvarint(nil, id),
		string(keyKind): {byte(r.Kind)},
	}
	if r.Kind == snapshots.KindCommitted {
		values[string(keyInodes)] = binary.AppendVarint(nil, r.Inodes)
		values[string(keySize)] = binary.AppendVarint(nil, r.Size)
	}
	if r.Parent != "" {
		values[string(keyParent)] = []byte(r.Parent)
		pid, _ := binary.Uvarint(sb.Bucket([]byte(r.Parent)).Get(keyID))
		if err := pb.Put(parentKey(pid, id), []byte(r.Name)); err != nil {
			return err
		}
	}
	for k, v := range values {
		if err := b.Put([]byte(k), v); err != nil {
			return err
		}
	}
	return errors.Join(boltutil.WriteTimestamps(b, r.Created, r.Updated), boltutil.WriteLabels(b, r.Labels))
}
