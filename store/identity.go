package store

import (
	"fmt"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// identityOf returns the identity of a file that is brought in a way. Of one that can be read only as
// a whole nothing else is ever seen.
func identityOf(d digest.Digest, l *chunkfile.Layout) digest.Digest {
	if l == nil {
		return d
	}
	return digest.FromString(d.String() + " " + l.ID.String())
}

// arrived says that a file is an object: to who brings it too, and to the views that may have it. If
// readers see it by chunks that did not make the object, it is found out first whether they are the same
// bytes.
func (s *Store) arrived(p hydrate.Publication) {
	o, ok := s.objects.Record(p.Digest)
	var doubted []*exposure
	for _, x := range s.exposuresOf(p.Digest) {
		switch {
		case x.view != "" && !(ok && mayHave(o, namesOf(x.from.Order()))):
		case x.file == nil || p.Layout != nil && p.Layout.ID == x.file.Layout.ID:
			s.complete(x)
		default:
			doubted = append(doubted, x)
		}
	}
	end := func() {
		if ok {
			s.engine.Arrived(p.Digest, func(from *transfer.Sources) bool { return mayHave(o, namesOf(from.Order())) })
		}
	}
	if len(doubted) == 0 {
		end()
		return
	}
	s.spawn(func() {
		for _, x := range doubted {
			if err := s.vouch(x.digest, x.file.Layout); err != nil {
				s.log.Warn("a file was read in chunks that are not those of its content; who has it open must open it anew", "digest", p.Digest, "err", err)
				if err := s.wasWrong(x); err != nil {
					s.log.Error("file that is complete is read in chunks until a restart", "digest", p.Digest, "err", err)
					continue
				}
			}
			s.complete(x)
		}
		end()
	})
}

// wasWrong gives a file another identity: what was read of it is not what it is.
func (s *Store) wasWrong(x *exposure) error {
	identity, err := s.db.WasWrong(x.view, x.digest)
	if errdefs.IsNotFound(err) { // nothing shows it any more
		return nil
	}
	if err == nil {
		x.identity.Store(identity)
	}
	return err
}

// vouch compares the chunks of a file that is read early with its object.
func (s *Store) vouch(d digest.Digest, l *chunkfile.Layout) error {
	if l.Unverified {
		return fmt.Errorf("they were not verified: %w", errdefs.ErrDataLoss)
	}
	f, err := s.OpenObject(d)
	if err != nil {
		return err
	}
	defer f.Close()
	var buf []byte
	for _, c := range l.Chunks {
		if int64(cap(buf)) < c.Size {
			buf = make([]byte, c.Size)
		}
		if c.Digest != "" && !readChunk(f, c.Offset, c, buf[:c.Size]) {
			return fmt.Errorf("chunk at %d: %w", c.Offset, errdefs.ErrDataLoss)
		}
	}
	return nil
}

// spawn runs f until the end of the store, unless that has come.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(f)
	}
}
