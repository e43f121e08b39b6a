package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
)

// Image is a converted image. Its manifest, config and table are objects, kept as long as the
// image.
type Image = meta.Image

// A Verdict records that the signatures of a model satisfy a policy.
type Verdict = meta.Verdict

// PutImage records an image, or adds its Refs to an existing one. A reference names one image at a
// time: it is removed from the previous image.
func (s *Store) PutImage(im Image) error {
	defer s.objects.Unprotect(im.Manifest, im.Config, im.Table)
	return s.db.PutImage(im)
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
