package meta

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// imageTTL is how long an image without references stays resolvable by its digest. It costs
// its manifest, config and table only.
const imageTTL = 7 * 24 * time.Hour

// Roots are what must stay beside that which is recorded as needed.
type Roots struct {
	Tables  []digest.Digest // with all that they need
	Blobs   []digest.Digest // with all that they contain
	Objects []digest.Digest
}

// live returns the objects that must stay: those of the roots and of tables with a reference that
// has not expired, and the documents of images.
func live(tx *bbolt.Tx, roots Roots) (map[digest.Digest]bool, error) {
	live := map[digest.Digest]bool{}
	tables, err := referred(tx, time.Now())
	if err != nil {
		return nil, err
	}
	for _, d := range roots.Tables {
		tables[d] = true
	}
	for _, d := range roots.Objects {
		live[d] = true
	}
	for _, b := range roots.Blobs {
		live[b] = true
		members, err := load[[]filetable.Member](tx, bucketContents, b)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		for _, m := range members {
			live[m.Digest] = true
		}
	}
	for d := range tables {
		live[d] = true
		t, err := load[Table](tx, bucketTables, d)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		for _, o := range t.Objects {
			live[o] = true
		}
	}
	return live, each(tx, bucketImages, func(_ string, im Image) error {
		live[im.Manifest], live[im.Config], live[im.Table] = true, true, true
		return nil
	})
}

// Usage is what is recorded, in bytes.
type Usage struct {
	Logical     int64 // files of all complete tables, each as often as it occurs
	Shared      int64 // objects of complete tables
	Unique      int64 // objects
	Reclaimable int64 // objects that nothing needs
	Objects     int64 // count
}

// Usage adds up what is recorded.
func (db *DB) Usage(roots Roots) (u Usage, err error) {
	return u, db.bolt.View(func(tx *bbolt.Tx) error {
		live, err := live(tx, roots)
		if err != nil {
			return err
		}
		needed := map[digest.Digest]bool{}
		err = each(tx, bucketTables, func(_ string, t Table) error {
			if t.Complete {
				u.Logical += t.Logical
				for _, d := range t.Objects {
					needed[d] = true
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		return each(tx, bucketObjects, func(d digest.Digest, o Object) error {
			u.Unique += o.Size
			u.Objects++
			if needed[d] {
				u.Shared += o.Size
			}
			if !live[d] {
				u.Reclaimable += o.Size
			}
			return nil
		})
	})
}

// Evict forgets objects that nothing needs, oldest use first, until want(total of them) bytes are
// found, and returns them: their files may go; and what must stay. Tables that need one that goes are not
// complete any more. A dry run only returns them. It returns errdefs.ErrFailedPrecondition while a
// reference is unresolved.
func (db *DB) Evict(roots Roots, want func(total int64) int64, dryRun bool) (objects []Sized, stays map[digest.Digest]bool, err error) {
	err = db.run(dryRun, func(tx *bbolt.Tx) error {
		if err := settled(tx); err != nil {
			return err
		}
		if stays, err = live(tx, roots); err != nil {
			return err
		}
		if objects, err = evictable(tx, stays, want); err != nil || dryRun {
			return err
		}
		gone := make([]digest.Digest, len(objects))
		for i, o := range objects {
			gone[i] = o.Digest
		}
		return forget(tx, gone, false)
	})
	if err != nil || dryRun || len(objects) == 0 {
		return objects, stays, err
	}
	return objects, stays, db.dropChunks()
}

func evictable(tx *bbolt.Tx, live map[digest.Digest]bool, want func(total int64) int64) ([]Sized, error) {
	type candidate struct {
		Sized
		used time.Time
	}
	var (
		all   []candidate
		total int64
	)
	err := each(tx, bucketObjects, func(d digest.Digest, o Object) error {
		if !live[d] {
			all = append(all, candidate{Sized{d, o.Size}, o.Used})
			total += o.Size
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.Digest, b.Digest))
	})
	var out []Sized
	left := want(total)
	for _, c := range all {
		if left <= 0 {
			break
		}
		left -= c.Size
		out = append(out, c.Sized)
	}
	return out, nil
}

// forget removes object records, and marks the tables that need them incomplete; broken, if the
// objects were lost.
func forget(tx *bbolt.Tx, objects []digest.Digest, lost bool) error {
	gone := map[digest.Digest]bool{}
	for _, o := range objects {
		gone[o] = true
		if err := tx.Bucket(bucketObjects).Delete([]byte(o)); err != nil {
			return err
		}
	}
	broken := map[digest.Digest]Table{}
	err := each(tx, bucketTables, func(d digest.Digest, t Table) error {
		if t.Complete && slices.ContainsFunc(t.Objects, func(o digest.Digest) bool { return gone[o] }) {
			t.Complete, t.Broken = false, lost
			broken[d] = t
		}
		return nil
	})
	if err != nil {
		return err
	}
	for d, t := range broken {
		if err := put(tx, bucketTables, d, t); err != nil {
			return err
		}
	}
	return attribute(tx)
}

// Expired is what Expire forgot.
type Expired struct {
	Refs   int
	Images int
}

// Expire forgets references that have expired; and, unless a reference is unresolved, images that
// nothing has used for a week, and what is known of tables and archives whose objects are gone. A dry
// run only counts.
func (db *DB) Expire(dryRun bool) (e Expired, err error) {
	return e, db.run(dryRun, func(tx *bbolt.Tx) error {
		drop, err := expiredRefs(tx)
		if err != nil {
			return err
		}
		e = Expired{Refs: len(drop)}
		if err := settled(tx); err == nil {
			useless, images, err := useless(tx)
			if err != nil {
				return err
			}
			drop = append(drop, useless...)
			e.Images = images
		} else if !errdefs.IsFailedPrecondition(err) {
			return err
		}
		if dryRun || len(drop) == 0 {
			return nil
		}
		for _, r := range drop {
			if err := tx.Bucket(r.bucket).Delete(r.key); err != nil {
				return err
			}
		}
		return attribute(tx)
	})
}

// A record is a key in a bucket.
type record struct{ bucket, key []byte }

func expiredRefs(tx *bbolt.Tx) (drop []record, err error) {
	now := time.Now()
	return drop, each(tx, bucketRefs, func(name string, r Ref) error {
		if !r.live(now) {
			drop = append(drop, record{bucketRefs, []byte(name)})
		}
		return nil
	})
}

// useless returns the records that are of no use, and how many of them are images.
func useless(tx *bbolt.Tx) (drop []record, images int, err error) {
	now := time.Now()
	mark := func(bucket []byte, key string) { drop = append(drop, record{bucket, []byte(key)}) }
	used, err := referred(tx, now)
	if err != nil {
		return nil, 0, err
	}
	known := maps.Clone(used) // the tables of images too
	err = errors.Join(
		each(tx, bucketImages, func(key string, im Image) error {
			if !used[im.Table] && now.Sub(im.Used) > imageTTL {
				mark(bucketImages, key)
				images++
				return nil
			}
			known[im.Table] = true
			return nil
		}),
		each(tx, bucketContents, func(key string, members []filetable.Member) error {
			if !slices.ContainsFunc(members, func(m filetable.Member) bool {
				return m.Type == filetable.TypeReg && exists(tx, bucketObjects, m.Digest)
			}) {
				mark(bucketContents, key)
			}
			return nil
		}),
		each(tx, bucketAssembled, func(key string, a assembled) error {
			if !exists(tx, bucketObjects, a.Digest) {
				mark(bucketAssembled, key)
			}
			return nil
		}),
		each(tx, bucketShown, func(key string, _ identity) error {
			if !exists(tx, bucketObjects, key) {
				mark(bucketShown, key)
			}
			return nil
		}),
		each(tx, bucketWays, func(key string, w way) error {
			if w.useless(tx, key, known) {
				mark(bucketWays, key)
			}
			return nil
		}),
		each(tx, bucketVerdicts, func(key string, _ []Verdict) error {
			if !exists(tx, bucketObjects, key) && !known[digest.Digest(key)] {
				mark(bucketVerdicts, key)
			}
			return nil
		}),
		each(tx, bucketTables, func(key string, _ Table) error {
			if !exists(tx, bucketObjects, key) && !known[digest.Digest(key)] {
				mark(bucketTables, key)
			}
			return nil
		}),
	)
	return drop, images, err
}

// An Idle is an image that no reference needs.
type Idle struct {
	Image
	Bytes int64 // of its documents
}

// Idle returns the images that no reference and none of the tables needs, oldest use first. Documents
// that two have count twice.
func (db *DB) Idle(tables []digest.Digest) (idle []Idle, err error) {
	err = db.bolt.View(func(tx *bbolt.Tx) error {
		used, err := referred(tx, time.Now())
		if err != nil {
			return err
		}
		for _, t := range tables {
			used[t] = true
		}
		return each(tx, bucketImages, func(_ string, im Image) error {
			if used[im.Table] {
				return nil
			}
			i := Idle{Image: im}
			for _, d := range im.documents() {
				o, err := load[Object](tx, bucketObjects, d)
				if err != nil && !errdefs.IsNotFound(err) {
					return err
				}
				i.Bytes += o.Size
			}
			idle = append(idle, i)
			return nil
		})
	})
	slices.SortFunc(idle, func(a, b Idle) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Manifest, b.Manifest)) })
	return idle, err
}

// ForgetImages forgets images, and those of their documents that nothing else needs, which it returns:
// their files may go. It returns errdefs.ErrFailedPrecondition while a reference is unresolved.
func (db *DB) ForgetImages(roots Roots, images []Image) (objects []Sized, err error) {
	return objects, db.bolt.Update(func(tx *bbolt.Tx) error {
		if err := settled(tx); err != nil {
			return err
		}
		for _, im := range images {
			if err := tx.Bucket(bucketImages).Delete([]byte(im.Manifest)); err != nil {
				return err
			}
		}
		needed, err := live(tx, roots)
		if err != nil {
			return err
		}
		var gone []digest.Digest
		for _, im := range images {
			for _, d := range im.documents() {
				o, err := load[Object](tx, bucketObjects, d)
				if needed[d] || errdefs.IsNotFound(err) {
					continue
				}
				if err != nil {
					return err
				}
				needed[d] = true // once
				gone, objects = append(gone, d), append(objects, Sized{d, o.Size})
			}
		}
		return forget(tx, gone, false)
	})
}
