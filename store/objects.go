package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// The directories of a store.
const (
	objectsDir = "objects"
	partialDir = "partial"
)

// objectMode is the mode of every object. Snapshots show their own modes.
const objectMode = 0o644

// ObjectName returns the path of an object below ObjectsDir, without a leading slash.
func ObjectName(d digest.Digest) string {
	hex := d.Encoded()
	return filepath.Join(d.Algorithm().String(), hex[:2], hex)
}

func objectPath(d digest.Digest) string { return filepath.Join(objectsDir, ObjectName(d)) }

// OpenObject opens a complete, verified object for reading.
// It returns errdefs.ErrNotFound if there is none.
func (s *Store) OpenObject(d digest.Digest) (*os.File, error) {
	rec, err := s.db.Object(d)
	if err != nil {
		return nil, err
	}
	if rec.Damaged {
		return nil, fmt.Errorf("object %s is damaged: %w", d, errdefs.ErrNotFound)
	}
	f, err := s.root.Open(objectPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("object %s is recorded, but its file is gone: %w", d, errdefs.ErrNotFound)
	}
	return f, err
}

// has says whether an object is recorded, not known to be damaged, and its file has the
// recorded size.
func (s *Store) has(d digest.Digest) bool {
	rec, err := s.db.Object(d)
	if err != nil || rec.Damaged {
		return false
	}
	info, err := s.root.Lstat(objectPath(d))
	return err == nil && info.Mode().IsRegular() && info.Size() == rec.Size
}

// PutBytes stores p as an object and returns its digest. It is durable on return.
// It is for manifests, configs and tables; an object without a reference is evictable.
func (s *Store) PutBytes(ctx context.Context, p []byte) (digest.Digest, error) {
	d := digest.FromBytes(p)
	s.gcMu.RLock()
	defer s.gcMu.RUnlock()
	if s.has(d) {
		s.keep(d)
		return d, nil
	}
	name := filepath.Join(partialDir, "bytes-"+randomName())
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, objectMode)
	if err != nil {
		return "", err
	}
	_, err = f.Write(p)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.publishLocked([]publication{{from: name, d: d, size: int64(len(p))}}, meta.Arrival{})
	}
	if err != nil {
		s.root.Remove(name)
		return "", fmt.Errorf("store object %s: %w", d, err)
	}
	return d, nil
}

func randomName() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ReadBytes reads an object of at most limit bytes, verified.
func (s *Store) ReadBytes(ctx context.Context, d digest.Digest, limit int64) ([]byte, error) {
	f, err := s.OpenObject(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return verify.Read(f, d, info.Size(), limit)
}

// A publication is a finished, fsynced, verified file that becomes an object.
type publication struct {
	from string // path below the root
	d    digest.Digest
	size int64
	how  *chunked // in which it was brought, if readers could see it
}

// publish renames files to their places, makes the directories durable and records the
// objects, all in this order: a crash leaves a file that Open adopts, or nothing. found is
// recorded with them.
func (s *Store) publish(files []publication, found meta.Arrival) error {
	s.gcMu.RLock()
	defer s.gcMu.RUnlock()
	return s.publishLocked(files, found)
}

// publishLocked is publish for who holds gcMu.
func (s *Store) publishLocked(files []publication, found meta.Arrival) error {
	if err := s.putIdentities(files); err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, p := range files {
		to := objectPath(p.d)
		dir := filepath.Dir(to)
		if !dirs[dir] {
			if err := s.root.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			dirs[dir] = true
		}
		if err := s.root.Rename(p.from, to); err != nil {
			return err
		}
		s.keep(p.d)
	}
	for dir := range dirs {
		if err := s.syncDir(dir); err != nil {
			return err
		}
	}
	if len(dirs) > 0 {
		if err := s.syncDir(filepath.Join(objectsDir, digest.SHA256.String())); err != nil {
			return err
		}
	}
	found.Chunks = map[digest.Digest][]filetable.Chunk{}
	for _, p := range files {
		found.Objects = append(found.Objects, meta.Sized{Digest: p.d, Size: p.size})
		if p.how != nil && !p.how.unverified {
			found.Chunks[p.d] = p.how.chunks
		}
	}
	if err := s.db.Arrive(found); err != nil {
		return err
	}
	for _, p := range files {
		s.arrived(p)
	}
	return nil
}

func (s *Store) syncDir(name string) error {
	f, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// adopt makes the objects bucket agree with the files below objects: a file is there only
// if it was verified, so one without a record gets a record, and a record without a file
// goes.
func (s *Store) adopt() error {
	found := map[digest.Digest]int64{}
	err := fs.WalkDir(s.root.FS(), objectsDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		d, err := verify.ParseDigest("sha256:" + e.Name())
		if err != nil || objectPath(d) != name {
			s.log.Warn("file among the objects is none; left alone", "path", name)
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		found[d] = info.Size()
		return nil
	})
	if err != nil {
		return err
	}
	gone, err := s.db.Adopt(found)
	if err != nil {
		return err
	}
	for _, d := range gone {
		if _, ok := found[d]; ok {
			s.log.Error("object has another size than recorded", "digest", d)
		} else {
			s.log.Error("object is recorded, but its file is gone", "digest", d)
		}
	}
	return nil
}

// free returns the bytes that an unprivileged writer can still write, and the capacity.
func (s *Store) free() (free, capacity int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", s.dir, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// emptyDigest is the digest of no bytes.
var emptyDigest = digest.FromBytes(nil)
