package store

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Methods to make a local file an object.
const (
	LinkClone = object.LinkClone // shares the blocks of the file; later writes to one are not seen in the other
	LinkHard  = object.LinkHard  // a hard link to a file that only root can write to
	LinkNone  = object.LinkNone  // the bytes must be copied, by Hydrate
)

// LinkOptions configure Link.
type LinkOptions struct {
	// Open opens the file that should have the bytes of a blob. It is not trusted. If it returns
	// errdefs.ErrNotFound, the blob is left to Hydrate.
	Open func(digest.Digest) (*os.File, error)

	// Private is the name of the only source (transfer.Source) that may have the files, besides
	// sources that provide them. Empty means that the files are public.
	Private string

	// Progress is called as HydrateOptions.Progress. Blobs that are not linked stay "waiting".
	Progress func([]Progress)
}

// Linked reports the bytes that Link made objects.
type Linked struct {
	Cloned int64 // LinkClone
	Hard   int64 // LinkHard
}

// Link makes local files objects for the missing raw blobs of a table, as far as that is possible
// without copying. Other blobs are left to Hydrate with a Fetcher that reads the files. The files
// are not changed, but may get a second hard link.
//
// The digest is computed over the new file after it shares the bytes, so earlier content does not
// count. Link returns a *verify.Error for a file with other bytes or another size than the blob.
func (s *Store) Link(ctx context.Context, table digest.Digest, o LinkOptions) (Linked, error) {
	t, err := s.Table(table)
	if err != nil {
		return Linked{}, err
	}
	l := &linking{s: s, o: o}
	names := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob != "" && names[f.Source.Blob] == "" {
			names[f.Source.Blob] = f.Path
		}
	}
	for _, b := range t.Blobs {
		l.progress = append(l.progress, Progress{Blob: b.Digest, Name: names[b.Digest], Total: b.Size, State: hydrate.StateWaiting})
	}
	for i, b := range t.Blobs {
		if b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone || b.Size == 0 {
			continue
		}
		if err := l.blob(ctx, i, b); err != nil {
			return l.done, fmt.Errorf("layer %d (%s): %w", b.Layer, b.Digest, err)
		}
	}
	l.report(true)
	return l.done, nil
}

// linking is one run of Link.
type linking struct {
	s    *Store
	o    LinkOptions
	done Linked

	progress []Progress // by blob of the table
	reported time.Time
}

// report calls Progress, at most every hydrate.ProgressEvery unless now, and protects new objects
// from garbage collection.
func (l *linking) report(now bool) {
	if !now && time.Since(l.reported) < hydrate.ProgressEvery {
		return
	}
	l.reported = time.Now()
	for _, p := range l.progress {
		if p.State == hydrate.StateComplete || p.State == hydrate.StatePresent {
			l.s.objects.Protect(p.Blob)
		}
	}
	if l.o.Progress != nil {
		l.o.Progress(append([]Progress(nil), l.progress...))
	}
}

// blob links the blob with index i.
func (l *linking) blob(ctx context.Context, i int, b filetable.Blob) error {
	p := &l.progress[i]
	has, err := l.s.hasBlob(b, nil)
	if err != nil {
		return err
	}
	if has {
		p.State, p.Done = hydrate.StatePresent, p.Total
		l.report(false)
		return nil
	}
	f, err := l.o.Open(b.Digest)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var private []string
	if l.o.Private != "" {
		private = []string{l.o.Private}
	}
	method, err := l.s.objects.Link(ctx, f, b.Digest, b.Size, private, func(n int64) {
		p.State, p.Done = hydrate.StateVerifying, n
		l.report(false)
	})
	if err != nil || method == LinkNone {
		return err
	}
	l.s.exposed.Arrived(b.Digest, "")
	p.State, p.Done = hydrate.StateComplete, p.Total
	if method == LinkClone {
		l.done.Cloned += b.Size
	} else {
		l.done.Hard += b.Size
	}
	l.report(false)
	return nil
}
