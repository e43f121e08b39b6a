// Package storetest provides fetchers that work, fail, stall or return wrong data, builders of
// tables, and a slow disk, for tests of the store and of its users.
package storetest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Random returns n bytes that do not compress and depend only on seed.
func Random(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	p := make([]byte, n)
	rand.NewChaCha8(key).Read(p)
	return p
}

// A Fetcher serves blobs from memory. Its fields configure faults; only their own functions can
// change them while the Fetcher is in use.
type Fetcher struct {
	Blobs map[digest.Digest][]byte

	NoRanges bool                         // answer every range with the whole blob
	Fail     func(off int64) error        // called before the first byte of a range
	Cut      func(off int64) int          // ends a body after that many bytes; negative: no limit
	Mangle   func(off int64, body []byte) // changes bytes of a body
	Delay    func(ctx context.Context)    // called before the body
	Allow    func(off, n int64) bool      // false: block until the context ends
	mu       sync.Mutex                   // guards the fields below
	sent     map[digest.Digest]int64      // bytes returned
	asked    map[digest.Digest]int        // calls of Fetch
	ranges   map[digest.Digest][][2]int64 // requested ranges
}

// NewFetcher returns a Fetcher of the given blobs.
func NewFetcher(blobs ...[]byte) *Fetcher {
	f := &Fetcher{Blobs: map[digest.Digest][]byte{}}
	for _, b := range blobs {
		f.Blobs[digest.FromBytes(b)] = b
	}
	return f
}

// Sent returns the number of bytes of a blob that were returned.
func (f *Fetcher) Sent(d digest.Digest) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[d]
}

// Calls returns the number of requests for ranges of a blob.
func (f *Fetcher) Calls(d digest.Digest) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[d]
}

// Fetch implements store.Fetcher.
func (f *Fetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f.mu.Lock()
	if f.sent == nil {
		f.sent, f.asked, f.ranges = map[digest.Digest]int64{}, map[digest.Digest]int{}, map[digest.Digest][][2]int64{}
	}
	f.asked[d]++
	f.ranges[d] = append(f.ranges[d], [2]int64{off, n})
	f.mu.Unlock()
	blob, ok := f.Blobs[d]
	if !ok {
		return nil, 0, fmt.Errorf("blob %s: %w", d, errdefs.ErrNotFound)
	}
	if f.Allow != nil && !f.Allow(off, n) {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	if f.Delay != nil {
		f.Delay(ctx)
	}
	if f.Fail != nil {
		if err := f.Fail(off); err != nil {
			return nil, 0, err
		}
	}
	if f.NoRanges {
		off, n = 0, size
	}
	end := min(off+n, int64(len(blob)))
	body := bytes.Clone(blob[min(off, end):end])
	if f.Mangle != nil {
		f.Mangle(off, body)
	}
	if f.Cut != nil {
		if c := f.Cut(off); c >= 0 {
			body = body[:min(c, len(body))]
		}
	}
	return &counted{Reader: bytes.NewReader(body), f: f, d: d, ctx: ctx}, off, nil
}

type counted struct {
	*bytes.Reader
	f   *Fetcher
	d   digest.Digest
	ctx context.Context
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.Reader.Read(p[:min(len(p), 256<<10)])
	c.f.mu.Lock()
	c.f.sent[c.d] += int64(n)
	c.f.mu.Unlock()
	return n, err
}

// WriteTo hides the method of bytes.Reader, which would bypass the count.
func (c *counted) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

func (c *counted) Close() error { return nil }

// Tar returns an uncompressed tar with the given headers; contents[i] is the content of headers[i].
func Tar(t testing.TB, headers []tar.Header, contents [][]byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if contents[i] != nil {
			h.Size = int64(len(contents[i]))
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_700_000_000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(contents[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// A Builder builds tables.
type Builder struct{ t filetable.Table }

// NewBuilder returns a Builder of a table whose origin depends on name.
func NewBuilder(name string) *Builder {
	sum := sha256.Sum256([]byte(name))
	return &Builder{filetable.Table{Version: filetable.Version, Origin: filetable.Origin{
		Format: "test", Digest: digest.NewDigestFromBytes(digest.SHA256, sum[:]), Mapping: 1,
	}}}
}

func (b *Builder) blob(p []byte, a filetable.Archive, c filetable.Codec) digest.Digest {
	d := digest.FromBytes(p)
	if !slices.ContainsFunc(b.t.Blobs, func(o filetable.Blob) bool { return o.Digest == d }) {
		b.t.Blobs = append(b.t.Blobs, filetable.Blob{Digest: d, Size: int64(len(p)), Archive: a, Codec: c, Layer: len(b.t.Blobs)})
	}
	return d
}

// Raw adds a file that is a whole blob.
func (b *Builder) Raw(path string, p []byte, mode uint32) *Builder {
	d := b.blob(p, filetable.ArchiveNone, filetable.CodecNone)
	return b.File(filetable.File{Path: path, Type: filetable.TypeReg, Mode: mode, Size: int64(len(p)), Digest: d,
		Source: &filetable.Source{Blob: d, Size: int64(len(p))}})
}

// Inline adds a file whose content is in the table.
func (b *Builder) Inline(path string, p []byte, mode uint32) *Builder {
	return b.File(filetable.File{Path: path, Type: filetable.TypeReg, Mode: mode, Size: int64(len(p)), Digest: digest.FromBytes(p),
		Source: &filetable.Source{Inline: p}})
}

// Tar adds the members of a plain tar.
func (b *Builder) Tar(t testing.TB, p []byte) *Builder {
	t.Helper()
	d := b.blob(p, filetable.ArchiveTar, filetable.CodecNone)
	members, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
	if err != nil {
		t.Fatal(err)
	}
	b.t.Blobs[len(b.t.Blobs)-1].Index = filetable.IndexDigest(members)
	for _, m := range members {
		f := m.File()
		if m.Type == filetable.TypeReg {
			f.Source = &filetable.Source{Blob: d, Offset: m.Offset, Size: m.Size}
		}
		b.File(f)
	}
	return b
}

// Unpack adds a compressed tar.
func (b *Builder) Unpack(p []byte, c filetable.Codec, as string) *Builder {
	b.t.Unpacks = append(b.t.Unpacks, filetable.Unpack{Blob: b.blob(p, filetable.ArchiveTar, c), As: as})
	return b
}

// A Part is inline bytes, or a range of a blob.
type Part struct {
	Inline []byte
	Blob   []byte
	Off, N int
}

// Parts adds a file that is assembled from parts.
func (b *Builder) Parts(path string, mode uint32, parts ...Part) *Builder {
	f := filetable.File{Path: path, Type: filetable.TypeReg, Mode: mode, Source: &filetable.Source{}}
	for _, p := range parts {
		src := filetable.Source{Inline: p.Inline}
		if p.Blob != nil {
			src = filetable.Source{Blob: b.blob(p.Blob, filetable.ArchiveFragments, filetable.CodecNone), Offset: int64(p.Off), Size: int64(p.N)}
		}
		f.Size += src.Size + int64(len(src.Inline))
		f.Source.Parts = append(f.Source.Parts, src)
	}
	return b.File(f)
}

// File adds an entry without changes.
func (b *Builder) File(f filetable.File) *Builder {
	b.t.Files = append(b.t.Files, f)
	return b
}

// Table returns the table, with sorted files.
func (b *Builder) Table() *filetable.Table {
	slices.SortStableFunc(b.t.Files, func(x, y filetable.File) int { return cmp.Compare(x.Path, y.Path) })
	return &b.t
}

// Put stores the table.
func (b *Builder) Put(t testing.TB, s *store.Store) digest.Digest {
	t.Helper()
	p, err := b.Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.PutTable(p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Open opens a store without a reserve and closes it when the test ends.
func Open(t testing.TB, dir string, o store.Options) *store.Store {
	t.Helper()
	o.Reserve = cmp.Or(o.Reserve, 1)
	s, err := store.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// From returns the fetchers as sources of one repository, each for a different caller.
func From(fetchers ...transfer.Fetcher) []transfer.Source {
	return FromRepository("test/model", fetchers...)
}

// A Private fetcher says of all bytes that they were fetched with credentials.
type Private struct{ *Fetcher }

// Fetch implements transfer.Fetcher.
func (f Private) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, start, err := f.Fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, true), start, nil
}

// FromRepository is From for a repository with the given name, "host/repository".
func FromRepository(name string, fetchers ...transfer.Fetcher) (list []transfer.Source) {
	for _, f := range fetchers {
		list = append(list, transfer.Source{Name: name, CredentialsID: fmt.Sprintf("%p", f), Fetcher: f})
	}
	return list
}
