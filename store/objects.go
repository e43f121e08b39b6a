package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// ObjectName returns the path of an object below ObjectsDir, without a leading slash.
func ObjectName(d digest.Digest) string { return object.Name(d) }

// ObjectFile returns the path of an object of the store in dir, for programs that link to it. The file is never written
// into: a damaged one is replaced.
func ObjectFile(dir string, d digest.Digest) string {
	return filepath.Join(dir, object.Dir, object.Name(d))
}

// OpenObject opens a complete, verified object that a source with one of these names (transfer.Source) may have:
// it is public, or came from one of them. Any other object does not exist for the caller: the error is
// errdefs.ErrNotFound.
func (s *Store) OpenObject(d digest.Digest, names []string) (*os.File, error) {
	if err := s.objects.Allow(d, names); err != nil {
		return nil, err
	}
	return s.objects.Open(d)
}

// ReadBytes is OpenObject for the bytes of an object of at most limit bytes, which it verifies.
func (s *Store) ReadBytes(d digest.Digest, limit int64, names []string) ([]byte, error) {
	if err := s.objects.Allow(d, names); err != nil {
		return nil, err
	}
	return s.objects.Read(d, limit)
}

// OpenDocument opens a document of an image for reading: d is the digest of its manifest, config or table. Who may
// read the image decides the caller. It returns errdefs.ErrNotFound if the image has no such document, or it is gone.
func (s *Store) OpenDocument(im Image, d digest.Digest) (*os.File, error) {
	if err := isDocument(im, d); err != nil {
		return nil, err
	}
	return s.objects.Open(d)
}

// ReadDocument is OpenDocument for the bytes of a document of at most limit bytes, which it verifies.
func (s *Store) ReadDocument(im Image, d digest.Digest, limit int64) ([]byte, error) {
	if err := isDocument(im, d); err != nil {
		return nil, err
	}
	return s.objects.Read(d, limit)
}

// Has reports whether all objects are here, whoever may have them.
func (s *Store) Has(objects ...digest.Digest) bool {
	for _, d := range objects {
		f, err := s.objects.Open(d)
		if err != nil {
			return false
		}
		f.Close() // opened for reading
	}
	return true
}

// isDocument returns errdefs.ErrNotFound for a digest that is not that of a document of an image.
func isDocument(im Image, d digest.Digest) error {
	if !slices.Contains(im.Documents(), d) {
		return fmt.Errorf("image %s has no document %s: %w", im.Manifest, d, errdefs.ErrNotFound)
	}
	return nil
}

// has reports whether an object is recorded and its file has the recorded size. It does not hash
// files without a record.
func (s *Store) has(d digest.Digest) bool { return s.objects.Has(d) }

// hasBlob reports whether a raw blob is present for these sources. If it came from other sources, with
// credentials, it is not: these sources must provide all of it.
//
// It returns a *verify.Error if the object and the table differ in size.
func (s *Store) hasBlob(b filetable.Blob, from *transfer.Sources) (bool, error) {
	o, ok := s.objects.Record(b.Digest)
	if !ok || from != nil && !o.MayHave(transfer.Names(from.Order())) {
		return false, nil
	}
	return true, verify.Compare(b.Digest, b.Digest, b.Size, o.Size)
}

// PutBytes durably stores p as an object and returns its digest. It is for manifests, configs and
// tables; an object without a reference is evictable.
func (s *Store) PutBytes(p []byte) (digest.Digest, error) {
	all, err := s.putDocuments(meta.Arrival{}, p)
	return all[0], err
}

// putDocuments stores documents, records with them what else arrives, and returns their digests.
func (s *Store) putDocuments(a meta.Arrival, documents ...[]byte) ([]digest.Digest, error) {
	all, err := s.objects.Put(a, documents...)
	if err != nil {
		return all, err
	}
	for _, d := range all {
		s.exposed.Arrived(d, "")
	}
	return all, nil
}

// A Holdings is what the store has of a table, without what nobody knows before it is unpacked.
type Holdings struct {
	objects []digest.Digest
	staged  []string
}

// Holdings returns what the store has of the files of a table, and of the documents of its model.
func (s *Store) Holdings(t *filetable.Table, documents ...digest.Digest) (p Holdings) {
	p.objects = slices.Clone(documents)
	for _, f := range t.Files {
		p.objects = append(p.objects, f.Digest)
	}
	for _, b := range t.Blobs {
		members, _ := s.db.Contents(b.Digest) // unknown until it is unpacked
		for _, m := range members {
			p.objects = append(p.objects, m.Digest)
		}
	}
	for d := range stagedAs(t) {
		p.staged = append(p.staged, s.area.Dirs(d)...)
	}
	slices.Sort(p.staged)
	p.staged = slices.Compact(p.staged)
	p.objects = slices.DeleteFunc(p.objects, func(d digest.Digest) bool { return d == "" || !s.has(d) })
	return p
}

// discardTries and discardPause limit how long Discard waits for fetches that are just ending: they publish and
// release what they have.
const (
	discardTries = 100
	discardPause = 20 * time.Millisecond
)

// Discard removes what the store has, as Holdings, of a table that is no longer hydrated, unless something needs it
// or it was had before.
func (s *Store) Discard(t *filetable.Table, had Holdings, documents ...digest.Digest) (err error) {
	for range discardTries {
		now := s.Holdings(t, documents...)
		fresh := slices.DeleteFunc(now.objects, func(d digest.Digest) bool { return slices.Contains(had.objects, d) })
		staged := slices.DeleteFunc(now.staged, func(name string) bool { return slices.Contains(had.staged, name) })
		if len(fresh)+len(staged) == 0 {
			break
		}
		s.objects.Unprotect(fresh...)
		err = s.objects.ForgetImages(host{s}, nil, fresh...)
		for _, name := range staged {
			err = errors.Join(err, s.area.Tidy(name))
		}
		time.Sleep(discardPause)
	}
	return err
}

// free returns the bytes that an unprivileged writer can still write, and the capacity.
func (s *Store) free() (free, capacity int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", s.dir, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}
