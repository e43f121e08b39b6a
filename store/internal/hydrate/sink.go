package hydrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// smallWindow is the largest window of zstd, in bytes, with which archives are unpacked concurrently, and while they
// arrive: that of the default level of Podman.
const smallWindow = 32 << 20

// errLargeWindow means that an archive needs a window above smallWindow, and is there.
var errLargeWindow = errors.New("large window")

// A sink receives the bytes of a blob in order and makes the blob objects.
type sink interface {
	// consume receives the next bytes. It does not keep them.
	consume(p []byte) error

	// finish verifies the blob and publishes its objects. Nothing of the blob can be read before.
	finish() error

	// abort ends the sink without a result. finish is not called after it.
	abort()
}

func newSink(b *blobFetch, p *staging.Partial) sink {
	whole := blobHash{blob: b.target.Blob, hash: verify.NewHash()}
	switch {
	case whole.blob.Archive == filetable.ArchiveFragments:
		return &fragmentSink{whole}
	case whole.blob.Codec == filetable.CodecNone:
		return &tarSink{blobHash: whole, p: p, b: b, digests: map[string]digest.Digest{}}
	default:
		return newUnpackSink(b, p, whole)
	}
}

// blobHash computes the digest of a blob as transferred.
type blobHash struct {
	blob filetable.Blob
	hash verify.Hash
	n    int64
}

func (b *blobHash) consume(p []byte) error {
	b.n += int64(len(p))
	_, err := b.hash.Write(p)
	return err
}

func (b *blobHash) verify() error {
	return verify.Compare(b.blob.Digest, b.hash.Digest(), b.blob.Size, b.n)
}

// both passes p to two consumers concurrently.
func both(p []byte, a, b func(p []byte) error) error {
	var g errgroup.Group
	g.Go(func() error { return a(p) })
	return errors.Join(b(p), g.Wait())
}

// fragmentSink verifies a blob whose bytes are written directly to the files they are parts of.
// These are synced and published when they are complete.
type fragmentSink struct{ blobHash }

func (f *fragmentSink) abort() {}

func (f *fragmentSink) finish() error { return f.verify() }

// tarSink hashes the members of an uncompressed tar as its bytes pass. They are already staged.
type tarSink struct {
	blobHash
	p       *staging.Partial
	b       *blobFetch
	digests map[string]digest.Digest // by staged file

	off int64       // of the next byte
	cur verify.Hash // of the current member
}

func (t *tarSink) consume(p []byte) error { return both(p, t.blobHash.consume, t.members) }

func (t *tarSink) abort() {}

// members hashes the members in b.
func (t *tarSink) members(b []byte) error {
	err := t.p.Each(t.off, int64(len(b)), func(pc staging.Piece, at, from, to int64) error {
		if pc.InGap() {
			return nil
		}
		if at == 0 {
			t.cur = verify.NewHash()
		}
		t.cur.Write(b[from:to])
		if at+to-from == pc.Size {
			t.digests[pc.File] = t.cur.Digest()
		}
		return nil
	})
	t.off += int64(len(b))
	return err
}

// finish reads the headers again, from verified bytes: those in the table may have been read from unverified bytes.
// Resolve compares the rest of them.
func (t *tarSink) finish() error {
	if err := t.verify(); err != nil {
		return err
	}
	members, err := filetable.TarIndex(t.p, t.p.Size)
	if err != nil {
		return err
	}
	pieces, err := staging.TarPieces(members, t.p.Size)
	if err != nil {
		return err
	}
	if staging.LayoutOf(pieces, nil) != staging.LayoutOf(t.p.Pieces, nil) {
		return errHeaders
	}
	for i, m := range members {
		if m.Type == filetable.TypeReg {
			members[i].Digest = verify.Empty
			if m.Size > 0 {
				members[i].Digest = t.digests[staging.MemberFile(m.Offset)]
			}
		}
	}
	return t.b.e.publishContents(t.b, t.p, members, func(c filetable.Member) string { return staging.MemberFile(c.Offset) })
}

// errHeaders means that the headers of a tar in a table are not those of the verified tar.
var errHeaders = fmt.Errorf("its headers are not those that the registry gave when the model was resolved; remove it (ballast rm) and pull it again: %w", errdefs.ErrInvalidArgument)

// publishContents makes the staged members of an archive objects and records the contents of the
// blob.
func (e *Engine) publishContents(b *blobFetch, p *staging.Partial, contents []filetable.Member, staged func(filetable.Member) string) (err error) {
	_, end := span.Start(b.ctx, span.Publish)
	defer func() { end(err) }()
	var files []meta.File
	var names []string
	seen := map[digest.Digest]bool{}
	for _, c := range contents {
		if c.Type != filetable.TypeReg || seen[c.Digest] {
			continue
		}
		seen[c.Digest] = true
		name := staged(c)
		if c.Size == 0 {
			name = "empty"
			f, err := p.Create(name)
			if err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		names = append(names, name)
		files = append(files, meta.File{Staged: p.Path(name), Digest: c.Digest, Size: c.Size, Private: privateTo(&b.sources, b.target.group)})
	}
	sync := p.SyncAll
	if len(names) < syncAll || p.Resumed || !durable.SyncfsTells() {
		sync = func() error { return together(names, p.Sync) }
	}
	if err := sync(); err != nil {
		return err
	}
	return e.Objects.Publish(meta.Arrival{Files: files, Contents: map[digest.Digest][]filetable.Member{b.target.Blob.Digest: contents}})
}

// unpackSink unpacks a compressed tar as its bytes pass.
//
// If unpacking fails, it still reads all bytes: only the digest tells whether the archive or the
// transfer is wrong.
type unpackSink struct {
	blobHash
	p    *staging.Partial
	b    *blobFetch
	pipe *io.PipeWriter
	done chan struct{} // closed when unpack has returned

	window uint64     // the largest, in bytes
	plain  *bombGuard // used by unpack only

	aborted atomic.Bool

	// Results of unpack, valid after done is closed.
	err      error
	diffID   digest.Digest
	contents []filetable.Member
	byOffset map[int64]digest.Digest // of regular files, for hard links
	staged   map[digest.Digest]string
}

func newUnpackSink(b *blobFetch, p *staging.Partial, whole blobHash) *unpackSink {
	r, w := io.Pipe()
	u := &unpackSink{blobHash: whole, p: p, b: b, pipe: w, done: make(chan struct{}), window: smallWindow, staged: map[digest.Digest]string{}, byOffset: map[int64]digest.Digest{}}
	if b.large {
		u.window = filetable.MaxWindow
	}
	b.e.work.Go(func() {
		defer close(u.done)
		u.err = u.unpack(r)
		r.CloseWithError(errUnpacked)
	})
	return u
}

// errUnpacked is the error of writes to the pipe after unpack has returned.
var errUnpacked = errors.New("archive is unpacked")

func (u *unpackSink) consume(p []byte) error { return both(p, u.blobHash.consume, u.feed) }

// feed passes p to unpack, or drops it after unpack has returned.
func (u *unpackSink) feed(p []byte) error {
	if _, err := u.pipe.Write(p); err != errUnpacked {
		return err
	}
	return nil
}

func (u *unpackSink) abort() {
	u.aborted.Store(true)
	u.pipe.CloseWithError(context.Canceled)
	<-u.done
	u.drop()
}

// drop removes the unpacked members. Fetched bytes stay for the next attempt.
func (u *unpackSink) drop() {
	for _, name := range u.staged {
		// It is overwritten by the next attempt; until then it only takes space.
		_ = u.b.e.Root.Remove(u.p.Path(name))
	}
	u.b.unpacked.Store(0)
}

func (u *unpackSink) finish() error {
	u.pipe.Close()
	<-u.done
	if err := u.publish(); err != nil {
		u.drop()
		return err
	}
	return nil
}

func (u *unpackSink) publish() error {
	if err := u.verify(); err != nil {
		return err
	}
	if u.err != nil {
		large := errors.Is(u.err, zstd.ErrWindowSizeExceeded) || errors.Is(u.err, zstd.ErrDecoderSizeExceeded)
		if large && u.window < filetable.MaxWindow {
			return errLargeWindow
		}
		err := fmt.Errorf("unpack %s archive: %w", u.blob.Codec, u.err)
		if large {
			err = fmt.Errorf("unpack %s archive: a window of more than %d MiB: %w", u.blob.Codec, filetable.MaxWindow>>20, errdefs.ErrInvalidArgument)
		}
		if errors.Is(u.err, io.ErrUnexpectedEOF) { // although the bytes are right
			err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		return err
	}
	if u.blob.DiffID != "" {
		if err := verify.Compare(u.blob.DiffID, u.diffID, 0, 0); err != nil {
			return fmt.Errorf("uncompressed content does not have the diffID of the config: %w", err)
		}
	}
	return u.b.e.publishContents(u.b, u.p, u.contents, func(c filetable.Member) string { return u.staged[c.Digest] })
}

func (u *unpackSink) unpack(compressed io.Reader) error {
	plain, err := decompress(compressed, u.blob.Codec, u.window)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer plain.Close()
	u.plain = &bombGuard{r: plain, objects: u.b.e.Objects, size: u.blob.Size, all: &u.b.unpacked, sum: &u.b.e.unpacked, aborted: &u.aborted}
	var (
		in   io.Reader = u.plain
		hash           = verify.NewHash()
	)
	if u.blob.DiffID != "" {
		in = io.TeeReader(u.plain, hash)
	}
	buf := make([]byte, 1<<20)
	if err := filetable.WalkTar(in, func(m filetable.Member, body io.Reader) error { return u.member(m, body, buf) }); err != nil {
		return err
	}
	// The rest is needed for the diffID and for the checksum of the codec.
	if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{in}, buf); err != nil {
		return err
	}
	u.diffID = hash.Digest()
	return nil
}

func (u *unpackSink) member(m filetable.Member, body io.Reader, buf []byte) error {
	switch {
	case m.Type != filetable.TypeReg:
	case m.Size == 0:
		m.Digest = verify.Empty
	case body == nil: // hard link
		m.Digest = u.byOffset[m.Offset]
	default:
		d, err := u.stage(m, body, buf)
		if err != nil {
			return fmt.Errorf("tar member %q: %w", m.Path, err)
		}
		m.Digest = d
		u.byOffset[m.Offset] = d
	}
	u.contents = append(u.contents, m)
	return nil
}

func (u *unpackSink) stage(m filetable.Member, body io.Reader, buf []byte) (digest.Digest, error) {
	name := staging.MemberFile(m.Offset)
	f, err := u.p.Create(name)
	if err != nil {
		return "", err
	}
	hash := verify.NewHash()
	err = copyHoles(f, hash, body, buf, &u.plain.holes)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, u.b.e.Root.Remove(u.p.Path(name)))
	}
	d := hash.Digest()
	u.staged[d] = name
	return d, nil
}

// decompress returns the uncompressed bytes of r, of which the windows of zstd have at most window bytes.
func decompress(r io.Reader, c filetable.Codec, window uint64) (io.ReadCloser, error) {
	switch c {
	case filetable.CodecGzip:
		zr, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		return gzipReader{zr}, nil
	case filetable.CodecZstd:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	default:
		panic("store: internal error: codec " + string(c))
	}
}

// gzipReader names the error for what is no member of gzip after others.
type gzipReader struct{ r *gzip.Reader }

func (g gzipReader) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if errors.Is(err, gzip.ErrHeader) {
		err = fmt.Errorf("bytes after the last gzip member that are no gzip: %w", err)
	}
	return n, err
}

func (g gzipReader) Close() error { return g.r.Close() }
