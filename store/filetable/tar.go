package filetable

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Member is one entry of a tar that is part of a model.
type Member struct {
	Path    string    `json:"name"` // clean
	Type    string    `json:"type"` // TypeReg, TypeDir or TypeSymlink
	Mode    uint32    `json:"mode"` // permission bits only
	UID     uint32    `json:"uid,omitempty"`
	GID     uint32    `json:"gid,omitempty"`
	ModTime time.Time `json:"modtime,omitzero"`
	Size    int64     `json:"size,omitempty"`   // bytes, TypeReg
	Offset  int64     `json:"offset,omitempty"` // of the content in the uncompressed tar
	Target  string    `json:"linkName,omitempty"`

	// Digest is the digest of the content, set after the content is read.
	Digest digest.Digest `json:"digest,omitempty"`
}

// File returns the file at the path of m, without a source.
func (m Member) File() File {
	return File{Path: m.Path, Type: m.Type, Mode: m.Mode, UID: m.UID, GID: m.GID, ModTime: m.ModTime, Size: m.Size, Target: m.Target}
}

// MaxMembers is the largest number of members of a tar, and of all plain tars of a model together:
// headers are read one by one, and each takes as much memory as in the tar.
const MaxMembers = 100_000

// tooManyMembers returns the error for more than MaxMembers.
func tooManyMembers() error {
	return &LimitError{LimitMembers, fmt.Errorf("more than %d members in a tar, or in the tars of a model: %w", MaxMembers, errdefs.ErrInvalidArgument)}
}

// TarIndex lists the members of an uncompressed tar of the given size; it reads only the headers. A
// hard link becomes a second Member with the position of the first. TarIndex returns
// errdefs.ErrInvalidArgument, naming the member, for content that a model must not have: unsafe
// paths, links that leave the archive, devices, sparse files. It returns the same error for an
// archive that is not a tar.
func TarIndex(r io.ReaderAt, size int64) ([]Member, error) {
	return TarIndexOf(r, size, new(atomic.Int64))
}

// TarIndexOf is TarIndex for one of several tars that share the member count n.
func TarIndexOf(r io.ReaderAt, size int64, n *atomic.Int64) ([]Member, error) {
	sr := io.NewSectionReader(r, 0, size)
	var members []Member
	err := WalkTar(sr, func(m Member, _ io.Reader) error {
		if m.Type == TypeReg && m.Offset > size-m.Size {
			return fmt.Errorf("tar member %q: %d bytes at %d reach beyond the end of the archive: %w", m.Path, m.Size, m.Offset, errdefs.ErrInvalidArgument)
		}
		if n.Add(1) > MaxMembers {
			return tooManyMembers()
		}
		members = append(members, m)
		return nil
	})
	return members, err
}

// IndexDigest identifies members, apart from the digests of their contents.
func IndexDigest(members []Member) digest.Digest {
	index := make([]Member, len(members))
	for i, m := range members {
		m.Digest = ""
		index[i] = m
	}
	p, err := json.Marshal(index)
	if err != nil {
		panic("filetable: internal error: " + err.Error()) // strings, numbers and times that CleanTime returned
	}
	return digest.FromBytes(p)
}

// FilesDigest identifies the regular files among members: paths, sizes and digests, without modes and times.
func FilesDigest(members []Member) digest.Digest {
	var lines []string
	for _, m := range members {
		if m.Type == TypeReg {
			lines = append(lines, fmt.Sprintf("%s %d %s\n", m.Digest, m.Size, m.Path))
		}
	}
	slices.Sort(lines)
	return digest.FromString(strings.Join(slices.Compact(lines), ""))
}

// WalkTar calls fn for each member of a tar with a reader of its content. The reader is nil for
// everything but regular files; a hard link has a nil reader and the position of its target.
// Offsets are correct only if r is not buffered.
func WalkTar(r io.Reader, fn func(Member, io.Reader) error) error {
	pos := &position{r: r}
	var in io.Reader = pos
	if s, ok := r.(io.Seeker); ok {
		in = seekPosition{pos, s}
	}
	w := tarWalk{tr: tar.NewReader(in), regular: map[string]Member{}}
	for n := 0; ; n++ {
		hdr, err := w.tr.Next()
		if err == io.EOF {
			if n == 0 && pos.n == 0 {
				return fmt.Errorf("an empty blob is not a tar: %w", errdefs.ErrInvalidArgument)
			}
			return nil
		}
		if err != nil {
			return pos.notTar(n, err)
		}
		if n >= MaxMembers {
			return tooManyMembers()
		}
		m, ok, err := w.member(hdr, pos.n)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		var body io.Reader
		if m.Type == TypeReg {
			w.regular[m.Path] = m
			if hdr.Typeflag != tar.TypeLink {
				body = w.tr
			}
		}
		if err := fn(m, body); err != nil {
			return err
		}
	}
}

type tarWalk struct {
	tr      *tar.Reader
	regular map[string]Member // by path, for hard links
}

// member converts a header to a Member; ok is false for entries that are not files.
func (w *tarWalk) member(hdr *tar.Header, off int64) (m Member, ok bool, err error) {
	bad := func(why string) (Member, bool, error) {
		return Member{}, false, fmt.Errorf("tar member %.200q: %s: %w", hdr.Name, why, errdefs.ErrInvalidArgument)
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeXGlobalHeader:
		return Member{}, false, nil
	case tar.TypeGNUSparse:
		return bad("sparse files are not allowed in a model")
	default:
		return bad(fmt.Sprintf("type %q is not allowed in a model, which has files, directories and links", hdr.Typeflag))
	}
	if hdr.Typeflag == tar.TypeDir && !strings.HasPrefix(hdr.Name, "/") && path.Clean(hdr.Name) == "." {
		return Member{}, false, nil // the root of the archive
	}
	p, err := CleanPath(hdr.Name)
	if err != nil {
		return Member{}, false, fmt.Errorf("tar member: %w", err)
	}
	p = strings.Clone(p) // not part of a header of up to 1 MiB, which is kept otherwise
	m = Member{Path: p, Mode: uint32(hdr.Mode) & 0o777, ModTime: CleanTime(hdr.ModTime)}
	if m.UID, m.GID, err = Owner(int64(hdr.Uid), int64(hdr.Gid)); err != nil {
		return Member{}, false, fmt.Errorf("tar member %q: %w", p, err)
	}
	switch hdr.Typeflag {
	case tar.TypeReg:
		for k := range hdr.PAXRecords {
			if strings.HasPrefix(k, "GNU.sparse.") {
				return bad("sparse files are not allowed in a model")
			}
		}
		m.Type, m.Size, m.Offset = TypeReg, hdr.Size, off
	case tar.TypeDir:
		m.Type = TypeDir
	case tar.TypeSymlink:
		m.Type, m.Target = TypeSymlink, strings.Clone(hdr.Linkname)
		if err := checkTarget(p, m.Target); err != nil {
			return Member{}, false, fmt.Errorf("tar member: %w", err)
		}
	case tar.TypeLink:
		target, err := CleanPath(hdr.Linkname)
		if err != nil {
			return Member{}, false, fmt.Errorf("tar member %q: hard link: %w", p, err)
		}
		first, ok := w.regular[target]
		if !ok {
			return bad(fmt.Sprintf("hard link to %q, which is not a regular file earlier in the archive", target))
		}
		m = first // with its attributes
		m.Path = p
	}
	return m, true, nil
}

// Owner returns a user and a group of an archive as those of a File, or errdefs.ErrInvalidArgument for ids that no file
// can have. As in chown, -1 leaves a file to root.
func Owner(uid, gid int64) (u, g uint32, err error) {
	for _, id := range []*int64{&uid, &gid} {
		if *id == -1 || *id == maxID+1 {
			*id = 0
		}
		if *id < 0 || *id > maxID {
			return 0, 0, fmt.Errorf("no file can belong to user or group %d: %w", *id, errdefs.ErrInvalidArgument)
		}
	}
	return uint32(uid), uint32(gid), nil
}

// CleanTime returns t in UTC, or the zero time if JSON cannot encode it.
func CleanTime(t time.Time) time.Time {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

// position counts the bytes read and keeps the first bytes for error messages.
type position struct {
	r      io.Reader
	n      int64
	head   []byte
	failed bool // r has returned an error
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if need := 4 - len(p.head); need > 0 {
		p.head = append(p.head, b[:min(n, need)]...)
	}
	p.n += int64(n)
	p.failed = p.failed || err != nil && err != io.EOF
	return n, err
}

func (p *position) notTar(n int, err error) error {
	if p.failed && !errors.Is(err, tar.ErrHeader) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read tar: %w", err)
	}
	what := ""
	switch {
	case n > 0:
	case bytes.HasPrefix(p.head, []byte{0x1f, 0x8b}):
		what = " (its bytes are gzip; the media type does not say so)"
	case bytes.HasPrefix(p.head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		what = " (its bytes are zstd; the media type does not say so)"
	case bytes.HasPrefix(p.head, []byte("GGUF")):
		what = " (its bytes are a GGUF file; the media type says tar)"
	}
	return fmt.Errorf("read tar after %d members, at byte %d%s: %w: %w", n, p.n, what, err, errdefs.ErrInvalidArgument)
}

// seekPosition lets archive/tar skip content by seeking.
type seekPosition struct {
	*position
	s io.Seeker
}

func (p seekPosition) Seek(off int64, whence int) (int64, error) {
	n, err := p.s.Seek(off, whence)
	if err == nil {
		p.n = n
	}
	return n, err
}

// PlaceTar returns the members of an archive at their paths in the model. as is the path of the
// archive in the origin and can be empty; see Unpack.As. Of members with the same path, each has the
// mode, owner and time of the last.
func PlaceTar(members []Member, as string) []Member {
	members = lastAttributes(members)
	if as == "" {
		return members
	}
	only := -1
	for i, m := range members {
		if m.Type != TypeReg || only >= 0 {
			return members
		}
		only = i
	}
	if only < 0 || strings.Contains(members[only].Path, "/") || path.Base(as) != members[only].Path {
		return members
	}
	placed := members[only]
	placed.Path = as
	return []Member{placed}
}

// lastAttributes returns members of which those with the same path have the mode, owner and time of the last.
func lastAttributes(members []Member) []Member {
	last := make(map[string]int, len(members))
	for i, m := range members {
		last[m.Path] = i
	}
	if len(last) == len(members) {
		return members
	}
	members = slices.Clone(members)
	for i, m := range members {
		of := members[last[m.Path]]
		members[i].Mode, members[i].UID, members[i].GID, members[i].ModTime = of.Mode, of.UID, of.GID, of.ModTime
	}
	return members
}
