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

// The ways in which a file of somebody else becomes an object.
const (
	LinkClone = object.LinkClone // shares the blocks of the file: what is written to one is not seen in the other
	LinkHard  = object.LinkHard  // a second name of a file that nobody but root can write to
	LinkNone  = object.LinkNone  // the bytes have to be copied, which is for Hydrate
)

// LinkOptions say where the files are.
type LinkOptions struct {
	// Open opens the file that should have the bytes of a blob. It is not trusted. An error
	// that is errdefs.ErrNotFound leaves the blob to Hydrate.
	Open func(digest.Digest) (*os.File, error)

	// Private is the name of the source (transfer.Source) that alone may have the files, besides who
	// proves that he has them. Empty: anybody may.
	Private string

	// Progress is that of HydrateOptions. Blobs that are not linked stay "waiting".
	Progress func([]Progress)
}

// Linked says what Link did, in bytes.
type Linked struct {
	Cloned int64 `json:"cloned"` // LinkClone
	Hard   int64 `json:"linked"` // LinkHard
}

// Link makes objects of local files, for those blobs of a table that are files as they are and
// not there yet, as far as that takes no copy. What it leaves out is for Hydrate, with a Fetcher
// that reads the files. The files are not changed; they get a second name at most.
//
// The digest is computed over the object-to-be, after it has come to share the bytes: what was
// in the file before does not count. Link returns a *verify.Error for a file with other bytes or
// another size than the blob.
func (s *Store) Link(ctx context.Context, table digest.Digest, o LinkOptions) (Linked, error) {
	t, err := s.Table(ctx, table)
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

// report calls Progress, if it is time, and protects what is done from the collector.
func (l *linking) report(now bool) {
	if !now && time.Since(l.reported) < hydrate.ProgressEvery {
		return
	}
	l.reported = time.Now()
	for _, p := range l.progress {
		if p.State == hydrate.StateComplete || p.State == hydrate.StatePresent {
			l.s.objects.Keep(p.Blob)
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
	way, err := l.link(ctx, f, b, func(n int64) {
		p.State, p.Done = hydrate.StateVerifying, n
		l.report(false)
	})
	if err != nil || way == LinkNone {
		return err
	}
	p.State, p.Done = hydrate.StateComplete, p.Total
	if way == LinkClone {
		l.done.Cloned += b.Size
	} else {
		l.done.Hard += b.Size
	}
	l.report(false)
	return nil
}

// link makes a file the object of a raw blob, and says how.
func (l *linking) link(ctx context.Context, f *os.File, b filetable.Blob, progress func(n int64)) (way string, err error) {
	var private []string
	if l.o.Private != "" {
		private = []string{l.o.Private}
	}
	way, err = l.s.objects.Link(ctx, f, b.Digest, b.Size, private, progress)
	if err == nil && way != LinkNone {
		l.s.arrived(hydrate.Publication{Digest: b.Digest})
	}
	return way, err
}

// LinkWay says how Link would make an object of a file, without doing it.
func (s *Store) LinkWay(f *os.File) (string, error) { return s.objects.LinkWay(f) }
