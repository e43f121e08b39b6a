package expose

import (
	"fmt"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// identityOf returns the identity of a file that is fetched with a layout. Without a layout the
// file can only be read when complete, so the identity is the digest.
func identityOf(d digest.Digest, l *chunkfile.Layout) digest.Digest {
	if l == nil {
		return d
	}
	return digest.FromString(d.String() + " " + l.ID.String())
}

// Arrived handles a new object, fetched with a layout unless that is "": it completes its exposures, informs
// hydrations and adds the object to views that may contain it. If readers used other chunks than those of the layout
// with which it was made, it first compares the bytes, unless another call does.
func (s *Set) Arrived(d, layout digest.Digest) {
	o, ok := s.Objects.Record(d)
	var unchecked []*exposure
	compared := false // by another call, which ends what is waited for
	for _, x := range s.exposuresOf(d) {
		switch {
		case x.view != "" && !(ok && o.MayHave(transfer.Names(x.from.Order()))):
		case x.file == nil || layout == x.file.Layout.ID:
			s.finish(x)
		case x.comparing.CompareAndSwap(false, true):
			unchecked = append(unchecked, x)
		default:
			compared = true
		}
	}
	end := func() {
		if o, ok := s.Objects.Record(d); ok { // others may have given it since
			s.Engine.Arrived(d, func(from *transfer.Sources) bool { return o.MayHave(transfer.Names(from.Order())) })
		}
	}
	if len(unchecked) == 0 {
		if !compared {
			end()
		}
		return
	}
	s.spawn(func() {
		checked := map[digest.Digest]error{} // by layout
		var doubted *chunkfile.Layout        // by a chain that may be wrong
		for _, x := range unchecked {
			l := x.file.Layout
			err, ok := checked[l.ID]
			if !ok {
				err = s.checkChunks(d, l)
				checked[l.ID] = err
			}
			if err == errClosed {
				x.fail(err)
				continue
			}
			if err != nil {
				if l.Chained() {
					doubted = l
				}
				s.Log.Warn("a file was read with chunks that do not match its content; its readers must open it again", "digest", d, "err", err)
				if err := s.replaceIdentity(x); err != nil {
					s.Log.Error("complete file is read by chunks until a restart", "digest", d, "err", err)
					x.comparing.Store(false)
					continue
				}
			}
			s.finish(x)
			x.comparing.Store(false)
		}
		end()
		if doubted != nil {
			s.Engine.Objects.DoubtChain(s.ctx, doubted.From)
		}
	})
}

// replaceIdentity gives a file a new identity, because wrong bytes were read under the old one.
func (s *Set) replaceIdentity(x *exposure) error {
	identity, err := s.DB.ReplaceIdentity(x.view, x.digest)
	if errdefs.IsNotFound(err) { // no longer shown
		return nil
	}
	if err == nil {
		x.identity.Store(identity)
	}
	return err
}

// checkChunks compares the chunks of an exposed file with its object. It returns errClosed if the set is closed before
// a difference is found.
func (s *Set) checkChunks(d digest.Digest, l *chunkfile.Layout) error {
	f, err := s.Objects.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	var buf []byte
	for _, c := range l.Chunks {
		if s.ctx.Err() != nil {
			return errClosed
		}
		if int64(cap(buf)) < c.Size {
			buf = make([]byte, c.Size)
		}
		if c.Digest == "" && !l.Stated {
			continue
		}
		if _, err := f.ReadAt(buf[:c.Size], c.Offset); err != nil || l.Verify(c, buf[:c.Size]) != nil {
			return fmt.Errorf("chunk at %d: %w", c.Offset, errdefs.ErrDataLoss)
		}
	}
	return nil
}

// grantRead adds an object to a view in which it may have been read by chunks before: after a
// crash, or after the object was lost.
func (s *Set) grantRead(view string, d digest.Digest, l *chunkfile.Layout) error {
	identity, err := s.DB.Identity(view, d)
	wrong := false
	switch {
	case errdefs.IsNotFound(err) || err == nil && identity == d: // only the right bytes were read
	case err != nil:
		return err
	case l == nil || identity != identityOf(d, l):
		wrong = true
	default:
		if err = s.checkChunks(d, l); err == errClosed {
			return err
		}
		wrong = err != nil
	}
	if wrong {
		if _, err := s.DB.ReplaceIdentity(view, d); err != nil {
			return err
		}
	}
	return s.Objects.Grant(view, d)
}

// spawn runs f in a goroutine, unless the set is closed.
func (s *Set) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.work.Go(f)
	}
}
