package store

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Image is a converted image. Its manifest, config and table are objects, kept as long as the
// image.
type Image = meta.Image

// A Verdict records that the signatures of a model satisfy a policy.
type Verdict = meta.Verdict

// PutImage records an image, or adds its Refs to an existing one. A reference names one image at a
// time: it is removed from the previous image. Documents of the image that may be missing are stored with
// it: its manifest, config and encoded table, which is validated.
func (s *Store) PutImage(im Image, documents ...[]byte) error {
	defer s.objects.Unprotect(im.Manifest, im.Config, im.Table)
	if len(documents) == 0 {
		return s.db.PutImage(im)
	}
	a, given := meta.Arrival{Images: []Image{im}}, map[digest.Digest][]byte{}
	for _, p := range documents {
		given[digest.FromBytes(p)] = p
	}
	if p, ok := given[im.Table]; ok {
		rec, err := s.recordOf(im.Table, p)
		if err != nil {
			return err
		}
		a.Tables = map[digest.Digest]meta.Table{im.Table: rec}
	}
	_, err := s.putDocuments(a, documents...)
	return err
}

// Limits of the documents of unreferenced images: any caller can have images converted.
const (
	// maxIdle limits all of them together, in bytes, and maxIdleSource those first resolved from
	// one registry.
	maxIdle       = 256 << 20 // 256 MiB
	maxIdleSource = 32 << 20  // 32 MiB: a model of 100 GB with digests of chunks has 4

	// idleBytes is the minimum that an image counts, in bytes: each image makes all requests
	// slightly slower.
	idleBytes = 64 << 10 // 64 KiB: 512 images of one registry, 4096 of all

	// idleGrace is how long an image stays after its last use in any case: a pull needs the time
	// from resolving the image to its first snapshot.
	idleGrace = 2 * time.Minute
)

// LimitIdle is the name of the limit of documents of unreferenced images.
const LimitIdle = "idle_documents"

// RemoveImages removes images and at once, without a GC, what only they have: documents, files and staged bytes. What
// another image has, or a reference or a hydration needs, stays. It returns the number and the size of the removed
// objects, and errdefs.ErrFailedPrecondition while the needs of a reference are unknown (Health).
func (s *Store) RemoveImages(images []Image) (objects int, bytes int64, err error) {
	staged := s.stagedOf(images) // while their tables are here
	gone, err := s.objects.RemoveImages(host{s}, images)
	for _, o := range gone {
		bytes += o.Size
	}
	if err != nil {
		return len(gone), bytes, err
	}
	for range discardTries {
		if staged = slices.DeleteFunc(staged, func(name string) bool { return !s.area.Has(name) }); len(staged) == 0 {
			break
		}
		for _, name := range staged {
			err = errors.Join(err, s.area.Tidy(name))
		}
		if slices.ContainsFunc(staged, s.area.Has) {
			time.Sleep(discardPause)
		}
	}
	s.log.Info("images removed with their files", "images", len(images), "objects", len(gone), "bytes", bytes)
	return len(gone), bytes, err
}

// stagedOf returns the names of the directories with staged bytes of content that only these images have.
func (s *Store) stagedOf(images []Image) (names []string) {
	staged := map[digest.Digest][]string{}
	for _, im := range images {
		for _, d := range s.contentOf(im) {
			if dirs := s.area.Dirs(d); len(dirs) > 0 {
				staged[d] = dirs
			}
		}
	}
	if len(staged) == 0 {
		return nil
	}
	for _, other := range s.Catalog.Images() {
		if slices.ContainsFunc(images, func(im Image) bool { return im.Manifest == other.Manifest }) {
			continue
		}
		for _, d := range s.contentOf(other) {
			delete(staged, d)
		}
	}
	for _, dirs := range staged {
		names = append(names, dirs...)
	}
	return names
}

// contentOf returns what an image can have staged, as stagedAs; nothing if its table cannot be read.
func (s *Store) contentOf(im Image) []digest.Digest {
	if im.Table == "" {
		return nil
	}
	t, err := s.Table(im.Table)
	if err != nil {
		return nil
	}
	return slices.Collect(stagedAs(t))
}

// stagedAs returns the digests by which content of a table is staged (staging.Area.Dirs): those of blobs, of files with
// chunks, and of the recipes of files with parts. One can come several times.
func stagedAs(t *filetable.Table) iter.Seq[digest.Digest] {
	return func(yield func(digest.Digest) bool) {
		for _, b := range t.Blobs {
			if !yield(b.Digest) {
				return
			}
		}
		for _, f := range t.Files {
			if f.Digest != "" && !yield(f.Digest) {
				return
			}
			if f.Source != nil && len(f.Source.Parts) > 0 && !yield(hydrate.RecipeOf(f.Source)) {
				return
			}
		}
	}
}

// TrimImages makes room for the documents of another image resolved from a registry: it removes
// unreferenced images, least recently used first, until the limits are met. It returns
// errdefs.ErrResourceExhausted if that needs images that were just used.
func (s *Store) TrimImages(registry string) error {
	idle := s.db.Idle(host{s}.Live().Tables)
	var all, own int64
	from := func(i meta.Idle) bool {
		return slices.ContainsFunc(i.Refs, func(r string) bool { return strings.HasPrefix(r, registry+"/") })
	}
	for n := range idle {
		i := &idle[n]
		i.Bytes = max(i.Bytes, idleBytes)
		if all += i.Bytes; from(*i) {
			own += i.Bytes
		}
	}
	var drop []Image
	for _, i := range idle {
		if own <= maxIdleSource && all <= maxIdle || time.Since(i.Used) < idleGrace {
			break
		}
		if mine := from(i); mine || all > maxIdle {
			drop = append(drop, i.Image)
			if all -= i.Bytes; mine {
				own -= i.Bytes
			}
		}
	}
	if len(drop) > 0 {
		if err := s.objects.ForgetImages(host{s}, drop); err != nil {
			return err
		}
		s.log.Info("unused images removed", "images", len(drop))
	}
	if own > maxIdleSource || all > maxIdle {
		return &filetable.LimitError{Limit: LimitIdle, Err: fmt.Errorf("images resolved from %s and not pulled take %d bytes, those of all registries %d; pull or remove some, or wait: %w",
			registry, own, all, errdefs.ErrResourceExhausted)}
	}
	return nil
}
