package carton

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// Options configure a carton. The zero value reads cartons that need no URL.
type Options struct {
	// HTTP sends a request and follows redirects, as http.Client.Do does. It decides which hosts
	// and addresses are allowed, and where http is, and must refuse redirects from https to http,
	// and end bodies that stall. It must not change Accept-Encoding or decode bodies. Nil disables
	// access to URLs.
	HTTP func(*http.Request) (*http.Response, error)

	// Hash is the model hash that the carton must have. Empty means any.
	Hash digest.Digest

	// TempDir is the directory for the copy of an archive from a server without range requests. If
	// it is empty, such an archive is refused.
	TempDir string

	// MaxTemp limits the archive that is copied, in bytes. Zero means 64 GiB.
	MaxTemp int64

	// MaxLinked limits the bytes read of all files of LINKS together to determine their sizes, if
	// the servers do not report them. Zero means 1 GiB: the conversion waits for these reads.
	MaxLinked int64

	// Log receives what was left out; nil discards.
	Log *slog.Logger
}

// The defaults of Options.
const (
	defaultMaxTemp   = 64 << 30
	defaultMaxLinked = 1 << 30
)

// A Carton is an open carton. All methods are safe for concurrent use.
type Carton struct {
	o       Options
	members members

	hash     digest.Digest
	manifest []byte
	entries  []Entry
	info     *Info
	places   map[digest.Digest]place

	linked atomic.Int64 // bytes read to determine sizes
	asked  atomic.Int64 // requests for sizes
}

// A place is where the bytes of a file are: in a member, or at URLs.
type place struct {
	entry *zipdir.Entry // nil if the file is only in LINKS
	urls  []string
}

// Open opens the carton in a source, which the Carton closes, even if Open returns an error. It
// returns errdefs.ErrInvalidArgument, naming the file or field, for an invalid carton,
// errdefs.ErrNotImplemented for one that needs a newer reader, and *verify.Error if its description
// does not match the digest in MANIFEST, or MANIFEST does not match Options.Hash.
func Open(ctx context.Context, src Source, o Options) (*Carton, error) {
	a, entries, err := openArchive(ctx, src)
	var c *Carton
	if err == nil {
		c, err = newCarton(ctx, a, o)
	}
	if err != nil {
		src.Close()
		return nil, fmt.Errorf("carton: %w", err)
	}
	c.warnUnlisted(entries)
	return c, nil
}

// newCarton does not close the members if it returns an error.
func newCarton(ctx context.Context, m members, o Options) (*Carton, error) {
	c := &Carton{o: o, members: m}
	if c.o.Log == nil {
		c.o.Log = slog.New(slog.DiscardHandler)
	}
	if err := c.readManifest(ctx); err != nil {
		return nil, err
	}
	if err := c.locate(ctx); err != nil {
		return nil, err
	}
	p, err := c.readInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nameInfo, err)
	}
	c.info, err = ParseInfo(p)
	return c, err
}

// Hash returns the model hash: the digest of MANIFEST.
func (c *Carton) Hash() digest.Digest { return c.hash }

// Close closes the source. The Fetcher must not be used any more.
func (c *Carton) Close() error { return c.members.Close() }

func (c *Carton) readManifest(ctx context.Context) (err error) {
	if c.manifest, err = c.readMember(ctx, nameManifest, MaxManifestSize); err != nil {
		return err
	}
	if c.manifest == nil {
		return invalid("no file %s", nameManifest)
	}
	c.hash = digest.FromBytes(c.manifest)
	if c.o.Hash != "" {
		if err := verify.Bytes(c.o.Hash, c.manifest); err != nil {
			return fmt.Errorf("%s: %w", nameManifest, err)
		}
	}
	c.entries, err = parseManifest(c.manifest)
	return err
}

// readMember reads a file whose digest is not recorded elsewhere. It returns nil if there is none.
func (c *Carton) readMember(ctx context.Context, name string, limit int64) ([]byte, error) {
	e, err := c.members.lookup(name)
	switch {
	case err != nil || e == nil:
		return nil, err
	case e.Type != filetable.TypeReg:
		return nil, invalid("no file %s, but another type", name)
	case e.Size > limit:
		return nil, invalid("%q of %d bytes, more than %d", name, e.Size, limit)
	}
	if err := convert.MakeRoom(ctx, e.Size); err != nil {
		return nil, err
	}
	r, err := c.members.open(ctx, e)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// readInfo reads and verifies carton.toml.
func (c *Carton) readInfo(ctx context.Context) ([]byte, error) {
	i := slices.IndexFunc(c.entries, func(e Entry) bool { return e.Path == nameInfo })
	d := c.entries[i].Digest
	size, err := c.size(ctx, d)
	if err != nil {
		return nil, err
	}
	if size > MaxInfoSize {
		return nil, invalid("%d bytes, more than %d", size, MaxInfoSize)
	}
	var r io.ReadCloser
	if p := c.places[d]; p.entry != nil {
		r, err = c.members.open(ctx, p.entry)
	} else {
		r, _, err = c.openLink(ctx, d, p.urls, 0, size)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return verify.Read(r, d, size, MaxInfoSize)
}

// size returns the size of a file. It is requested if the file is only in LINKS.
func (c *Carton) size(ctx context.Context, d digest.Digest) (int64, error) {
	p := c.places[d]
	if p.entry != nil {
		return p.entry.Size, nil
	}
	return c.sizeOf(ctx, d, p.urls)
}

// locate determines the place of each file of MANIFEST by its digest. A symbolic link is the file
// with the same digest: its target is not read.
func (c *Carton) locate(ctx context.Context) error {
	links := map[digest.Digest][]string{}
	text, err := c.readMember(ctx, nameLinks, MaxLinksSize)
	if err == nil && text != nil {
		links, err = parseLinks(text)
	}
	if err != nil {
		return err
	}
	c.places = make(map[digest.Digest]place, len(c.entries))
	for _, f := range c.entries {
		if err := c.addMember(f); err != nil {
			return err
		}
	}
	hasModel := false
	for _, f := range c.entries {
		hasModel = hasModel || strings.HasPrefix(f.Path, dirModel)
		if _, ok := c.places[f.Digest]; ok {
			continue
		}
		if len(links[f.Digest]) == 0 {
			return invalid("%s lists %q, whose content is neither in the archive nor in %s", nameManifest, f.Path, nameLinks)
		}
		c.places[f.Digest] = place{urls: links[f.Digest]}
	}
	if e, err := c.members.lookup(strings.TrimSuffix(dirModel, "/")); !hasModel && (err != nil || e == nil || e.Type != filetable.TypeDir) {
		return invalid("no folder %s", dirModel)
	}
	return nil
}

// addMember adds the member with the path of a file, if there is one, as the place of the file. A
// stored member is preferred, because it can be read by ranges.
func (c *Carton) addMember(f Entry) error {
	e, err := c.members.lookup(f.Path)
	switch have := c.places[f.Digest].entry; {
	case e == nil || err != nil:
		return err
	case e.Type == filetable.TypeDir:
		return invalid("%s lists %q, which is a directory", nameManifest, e.Name)
	case e.Type == filetable.TypeSymlink && !strings.HasPrefix(e.Name, dirModel):
		return invalid("symbolic link %q outside of %s", e.Name, dirModel)
	case e.Type == filetable.TypeSymlink:
		return nil
	case have == nil || e.Size == have.Size && e.Method == zipdir.Stored && have.Method != zipdir.Stored:
		c.places[f.Digest] = place{entry: e}
	case have.Size != e.Size:
		return invalid("%q and %q have one digest, but %d and %d bytes", have.Name, e.Name, have.Size, e.Size)
	}
	return nil
}

// warnUnlisted logs the members that are not in MANIFEST.
func (c *Carton) warnUnlisted(members []zipdir.Entry) {
	listed := map[string]bool{nameManifest: true, nameLinks: true}
	for _, e := range c.entries {
		listed[e.Path] = true
	}
	extra, first := 0, ""
	for _, e := range members {
		if e.Type != filetable.TypeDir && !listed[e.Name] {
			extra, first = extra+1, cmp.Or(first, e.Name)
		}
	}
	if extra > 0 {
		c.o.Log.Warn("carton has members that MANIFEST does not list; they are left out", "digest", c.hash, "members", extra, "path", first)
	}
}
