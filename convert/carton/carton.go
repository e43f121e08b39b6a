package carton

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Options configure a carton. The zero value reads cartons that need no URL.
type Options struct {
	// HTTP sends a request and follows redirects, as http.Client.Do does. It decides which hosts
	// and addresses are allowed, and must refuse redirects from https to http, and end bodies that
	// stall. It must not change Accept-Encoding or decode bodies. Nil disables access to URLs.
	HTTP func(*http.Request) (*http.Response, error)

	// AllowHTTP allows URLs of scheme http.
	AllowHTTP bool

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
	o   Options
	src Source
	dir *zipdir.Directory

	hash      digest.Digest
	manifest  []byte
	linksText []byte // nil without LINKS
	entries   []Entry
	files     map[string]int // index in entries, by path
	info      *Info
	places    map[digest.Digest]place

	linked atomic.Int64 // bytes read to determine sizes
}

// A place is where the bytes of a file are: in a member of the archive, or at URLs.
type place struct {
	entry *zipdir.Entry // nil if the file is only in LINKS
	urls  []string
}

// Open opens the carton in a source, which the Carton closes, even if Open returns an error. It
// returns errdefs.ErrInvalidArgument, naming the file or field, for an invalid carton,
// errdefs.ErrNotImplemented for one that needs a newer reader, and *verify.Error if its description
// does not match the digest in MANIFEST, or MANIFEST does not match Options.Hash.
func Open(ctx context.Context, src Source, o Options) (*Carton, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Carton{o: o, src: src}
	if err := c.open(ctx); err != nil {
		src.Close()
		return nil, fmt.Errorf("carton: %w", err)
	}
	return c, nil
}

func (c *Carton) open(ctx context.Context) error {
	var err error
	if f, ok := c.src.(*Folder); ok {
		c.dir = f.dir
	} else if c.dir, err = zipdir.Read(readerAt{ctx, c.src}, c.src.Size()); err != nil {
		return err
	}
	if err := c.readManifest(ctx); err != nil {
		return err
	}
	if err := c.find(ctx); err != nil {
		return err
	}
	p, err := c.read(ctx, nameInfo, MaxInfoSize)
	if err != nil {
		return err
	}
	c.info, err = ParseInfo(p)
	return err
}

// Hash returns the model hash: the digest of MANIFEST.
func (c *Carton) Hash() digest.Digest { return c.hash }

// Info returns the content of carton.toml. It must not be changed.
func (c *Carton) Info() *Info { return c.info }

// Close closes the source. The Fetcher must not be used any more.
func (c *Carton) Close() error { return c.src.Close() }

// readManifest reads MANIFEST and LINKS, whose digests are not recorded elsewhere.
func (c *Carton) readManifest(ctx context.Context) (err error) {
	if c.manifest, err = c.readPlain(ctx, nameManifest, MaxManifestSize); err != nil {
		return err
	}
	if c.o.Hash != "" {
		if err := verify.Bytes(c.o.Hash, c.manifest); err != nil {
			return fmt.Errorf("%s: %w", nameManifest, err)
		}
	}
	c.hash = digest.FromBytes(c.manifest)
	if c.entries, err = ParseManifest(c.manifest); err != nil {
		return err
	}
	c.files = make(map[string]int, len(c.entries))
	for i, e := range c.entries {
		c.files[e.Path] = i
	}
	if c.dir.Lookup(nameLinks) != nil {
		c.linksText, err = c.readPlain(ctx, nameLinks, MaxLinksSize)
	}
	return err
}

// readPlain reads a member of the archive without a digest.
func (c *Carton) readPlain(ctx context.Context, name string, limit int64) ([]byte, error) {
	e := c.dir.Lookup(name)
	if e == nil || e.Type != filetable.TypeReg {
		return nil, invalid("no file %s in the archive", name)
	}
	return c.readPlainEntry(ctx, e, limit)
}

func (c *Carton) readPlainEntry(ctx context.Context, e *zipdir.Entry, limit int64) ([]byte, error) {
	if e.Size > limit {
		return nil, invalid("%q of %d bytes, more than %d", e.Name, e.Size, limit)
	}
	r, err := c.openEntry(ctx, e)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// read reads and verifies a file of MANIFEST.
func (c *Carton) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	d := c.entries[c.files[name]].Digest
	p := c.places[d]
	size := int64(0)
	if p.entry != nil {
		size = p.entry.Size
	} else {
		n, err := c.sizeOf(ctx, d, p.urls)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		size = n
	}
	if size > limit {
		return nil, invalid("%s of %d bytes, more than %d", name, size, limit)
	}
	var r io.ReadCloser
	var err error
	if p.entry != nil {
		r, err = c.openEntry(ctx, p.entry)
	} else {
		r, _, err = c.openLink(ctx, d, p.urls, 0, size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	b, err := verify.Read(r, d, size, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// find finds the place of each file of MANIFEST.
func (c *Carton) find(ctx context.Context) error {
	links := map[digest.Digest][]string{}
	if c.linksText != nil {
		var err error
		if links, err = ParseLinks(c.linksText); err != nil {
			return err
		}
	}
	if err := c.checkMembers(); err != nil {
		return err
	}
	c.places = make(map[digest.Digest]place, len(c.entries))
	targets := map[string]string{}
	for _, f := range c.entries {
		e, err := c.member(ctx, f, targets)
		if err != nil {
			return err
		}
		have, known := c.places[f.Digest]
		switch {
		case e == nil && known:
		case e == nil && len(links[f.Digest]) == 0:
			return invalid("%s lists %q, which is neither in the archive nor in %s", nameManifest, f.Path, nameLinks)
		case e == nil:
			c.places[f.Digest] = place{urls: links[f.Digest]}
		case have.entry == nil:
			c.places[f.Digest] = place{entry: e}
		case have.entry.Size != e.Size:
			return invalid("%q and %q have one digest, but %d and %d bytes", have.entry.Name, e.Name, have.entry.Size, e.Size)
		case e.Method == zipdir.Stored && have.entry.Method != zipdir.Stored:
			c.places[f.Digest] = place{entry: e}
		}
	}
	return nil
}

// checkMembers looks for members that are not in MANIFEST, and for the directory of the model.
func (c *Carton) checkMembers() error {
	hasModel := slices.ContainsFunc(c.entries, func(e Entry) bool { return strings.HasPrefix(e.Path, dirModel) })
	extra := 0
	first := ""
	for i := range c.dir.Entries {
		e := &c.dir.Entries[i]
		_, listed := c.files[e.Name]
		hasModel = hasModel || e.Type == filetable.TypeDir && e.Name+"/" == dirModel
		switch {
		case e.Type == filetable.TypeDir && listed:
			return invalid("%s lists %q, which is a directory", nameManifest, e.Name)
		case e.Type == filetable.TypeSymlink && !strings.HasPrefix(e.Name, dirModel):
			return invalid("symbolic link %q outside of %s", e.Name, dirModel)
		case e.Type == filetable.TypeDir, listed, e.Name == nameManifest, e.Name == nameLinks:
		default:
			if extra++; extra == 1 {
				first = e.Name
			}
		}
	}
	if !hasModel {
		return invalid("no folder %s", dirModel)
	}
	if extra > 0 {
		c.o.Log.Warn("carton has members that MANIFEST does not list; they are left out", "digest", c.hash, "members", extra, "path", first)
	}
	return nil
}

// Limits of symbolic links. Each takes a read of its own.
const (
	maxTarget   = 4096 // bytes
	maxHops     = 16   // links in a chain
	maxSymlinks = 1000
)

// member returns the member with the content of a file, following symbolic links; nil if the
// archive has none. targets are the targets known so far.
func (c *Carton) member(ctx context.Context, f Entry, targets map[string]string) (*zipdir.Entry, error) {
	name := f.Path
	for range maxHops {
		e := c.dir.Lookup(name)
		if e == nil || e.Type == filetable.TypeReg {
			return e, c.checkTarget(f, name)
		}
		if e.Type == filetable.TypeDir {
			return nil, invalid("symbolic link %q leads to the directory %q", f.Path, name)
		}
		if _, ok := targets[name]; !ok {
			if len(targets) == maxSymlinks {
				return nil, invalid("more than %d symbolic links", maxSymlinks)
			}
			target, err := c.target(ctx, e)
			if err != nil {
				return nil, err
			}
			targets[name] = target
		}
		name = targets[name]
	}
	return nil, invalid("symbolic link %q leads over more than %d links", f.Path, maxHops)
}

// target returns the path of a symbolic link's target, which is inside of model/.
func (c *Carton) target(ctx context.Context, e *zipdir.Entry) (string, error) {
	text, err := c.readPlainEntry(ctx, e, maxTarget)
	if err != nil {
		return "", err
	}
	to := path.Join(path.Dir(e.Name), string(text))
	clean, err := filetable.CleanPath(to)
	if err != nil || clean != to || len(text) == 0 || path.IsAbs(string(text)) || !strings.HasPrefix(to, dirModel) {
		return "", invalid("symbolic link %q leads to %.200q, out of %s", e.Name, text, dirModel)
	}
	return to, nil
}

// checkTarget checks that the target of a symbolic link is a file with the same digest.
func (c *Carton) checkTarget(f Entry, target string) error {
	if target == f.Path {
		return nil
	}
	i, ok := c.files[target]
	if !ok {
		return invalid("symbolic link %q leads to %q, which is not in %s", f.Path, target, nameManifest)
	}
	if c.entries[i].Digest != f.Digest {
		return invalid("symbolic link %q leads to %q, which has another digest", f.Path, target)
	}
	return nil
}

// openEntry returns the content of a member, which is read with one request.
func (c *Carton) openEntry(ctx context.Context, e *zipdir.Entry) (io.ReadCloser, error) {
	body, err := c.src.Range(ctx, e.Start(), e.Span())
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.Name, err)
	}
	r, err := readEntry(body, e)
	if err != nil {
		body.Close()
		return nil, err
	}
	return r, nil
}

func readEntry(body io.ReadCloser, e *zipdir.Entry) (io.ReadCloser, error) {
	// All but the data can be the local header; usually it is.
	head := make([]byte, e.HeaderSize())
	if _, err := io.ReadFull(body, head); err != nil {
		return nil, fmt.Errorf("%q: local header: %w: %w", e.Name, err, errdefs.ErrUnavailable)
	}
	n, err := e.Locate(head)
	if err != nil {
		return nil, err
	}
	r, err := zipdir.NewReader(io.MultiReader(bytes.NewReader(head[n:]), body), e)
	if err != nil {
		return nil, err
	}
	return &member{r, body}, nil
}

// A member is the content of a member and its source.
type member struct {
	io.ReadCloser
	body io.Closer
}

func (m *member) Close() error {
	m.ReadCloser.Close() // it only frees memory
	return m.body.Close()
}

// locate returns where the data of a member starts in the archive.
func (c *Carton) locate(ctx context.Context, e *zipdir.Entry) (int64, error) {
	head := make([]byte, e.HeaderSize())
	if _, err := (readerAt{ctx, c.src}).ReadAt(head, e.Start()); err != nil {
		return 0, fmt.Errorf("%q: local header: %w", e.Name, err)
	}
	n, err := e.Locate(head)
	return e.Start() + n, err
}
