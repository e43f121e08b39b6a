package filetable

import (
	"cmp"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxFiles is the largest total number of files, blobs and archives in a table. The largest model
// repositories have some thousands of files; each takes half a kilobyte of memory in several
// places.
const maxFiles = 200_000

// maxParts is the largest number of parts of all files: a fragment in each blob, and padding after it.
const maxParts = 2 * maxFiles

// maxID is the largest id of a user or a group: the next one is -1 in 32 bits.
const maxID = 1<<32 - 2

// MaxModel is the largest sum of the sizes of blobs, and of files, in bytes. The largest models
// have some terabytes; the limit keeps computed sizes far below 1<<63.
const MaxModel = 1 << 50 // 1 PiB

// Validate returns errdefs.ErrInvalidArgument, naming the entry, if t is invalid: paths that are
// not clean, not sorted or collide, sizes that are negative or overflow, sources without a blob or
// beyond its end. It returns errdefs.ErrNotImplemented for a later version and for an unknown
// archive or codec.
func (t *Table) Validate() error {
	want := Version
	if t.Stacked {
		want = StackedVersion
	}
	if t.Version != want {
		return fmt.Errorf("file table has version %d, want %d: it was made by a newer ballast: %w", t.Version, want, errdefs.ErrNotImplemented)
	}
	if t.Origin.Format == "" || t.Origin.Mapping < 1 {
		return fmt.Errorf("file table: origin without format or mapping version: %w", errdefs.ErrInvalidArgument)
	}
	if _, err := verify.ParseDigest(string(t.Origin.Digest)); err != nil {
		return fmt.Errorf("file table: origin: %w", err)
	}
	if p, err := CleanPrefix(t.Origin.Prefix); err != nil {
		return fmt.Errorf("file table: prefix: %w", err)
	} else if p != t.Origin.Prefix {
		return fmt.Errorf("file table: prefix %q is not clean: %w", t.Origin.Prefix, errdefs.ErrInvalidArgument)
	}
	if err := CheckFiles(len(t.Files) + len(t.Blobs) + len(t.Unpacks)); err != nil {
		return err
	}
	parts := 0
	for _, f := range t.Files {
		if f.Source != nil {
			parts += len(f.Source.Parts)
		}
	}
	if parts > maxParts {
		return &LimitError{LimitFiles, fmt.Errorf("the files have %d parts, more than %d: %w", parts, maxParts, errdefs.ErrInvalidArgument)}
	}
	blobs, err := t.validateBlobs()
	if err != nil {
		return err
	}
	if err := t.validateFiles(blobs); err != nil {
		return err
	}
	return t.validateUnpacks(blobs)
}

// CheckFiles returns an error if n files, blobs and archives are too many for a model.
func CheckFiles(n int) error {
	if n > maxFiles {
		return &LimitError{LimitFiles, fmt.Errorf("%d files, blobs and archives, more than %d: %w", n, maxFiles, errdefs.ErrInvalidArgument)}
	}
	return nil
}

func (t *Table) validateBlobs() (map[digest.Digest]Blob, error) {
	blobs := make(map[digest.Digest]Blob, len(t.Blobs))
	var total int64
	for _, b := range t.Blobs {
		if _, err := verify.ParseDigest(string(b.Digest)); err != nil {
			return nil, fmt.Errorf("layer %d: %w", b.Layer, err)
		}
		bad := func(format string, args ...any) error {
			return fmt.Errorf("layer %d (%s): %s: %w", b.Layer, b.Digest, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
		}
		if _, ok := blobs[b.Digest]; ok {
			return nil, bad("listed twice")
		}
		if b.Size < 0 || b.Size > MaxModel-total {
			return nil, bad("size %d", b.Size)
		}
		total += b.Size
		switch {
		case (b.Archive == ArchiveNone || b.Archive == ArchiveFragments || b.Archive == ArchiveChunks) && b.Codec == CodecNone:
		case b.Archive == ArchiveTar && (b.Codec == CodecNone || b.Codec == CodecGzip || b.Codec == CodecZstd):
		default:
			return nil, fmt.Errorf("layer %d (%s): archive %q with codec %q: %w", b.Layer, b.Digest, b.Archive, b.Codec, errdefs.ErrNotImplemented)
		}
		if b.DiffID != "" {
			if _, err := verify.ParseDigest(string(b.DiffID)); err != nil {
				return nil, fmt.Errorf("layer %d (%s): diffID: %w", b.Layer, b.Digest, err)
			}
			if b.Codec == CodecNone && b.DiffID != b.Digest {
				return nil, bad("not compressed, but its diffID %s is another digest", b.DiffID)
			}
		}
		if b.Index != "" {
			if !b.PlainTar() {
				return nil, bad("an index of members, but it is no uncompressed tar")
			}
			if _, err := verify.ParseDigest(string(b.Index)); err != nil {
				return nil, fmt.Errorf("layer %d (%s): index of members: %w", b.Layer, b.Digest, err)
			}
		}
		if b.Files != "" {
			if b.Archive != ArchiveTar || b.Codec == CodecNone {
				return nil, bad("a list of files, but it is no compressed tar")
			}
			if _, err := verify.ParseDigest(string(b.Files)); err != nil {
				return nil, fmt.Errorf("layer %d (%s): list of files: %w", b.Layer, b.Digest, err)
			}
		}
		blobs[b.Digest] = b
	}
	return blobs, nil
}

func (t *Table) validateFiles(blobs map[digest.Digest]Blob) error {
	var total int64
	units := units{}
	sizes := make(map[digest.Digest]int64, len(blobs)) // what is fetched is told apart by its digest
	for d, b := range blobs {
		sizes[d] = b.Size
	}
	for i := range t.Files {
		f := &t.Files[i]
		if err := f.validate(blobs); err != nil {
			return err
		}
		if f.Digest != "" {
			if n, ok := sizes[f.Digest]; ok && n != f.Size {
				return fmt.Errorf("file %q: %s has %d bytes, and elsewhere %d: %w", f.Path, f.Digest, f.Size, n, errdefs.ErrInvalidArgument)
			}
			sizes[f.Digest] = f.Size
		}
		if err := units.add(f, blobs); err != nil {
			return err
		}
		if f.Size > MaxModel-total {
			return fmt.Errorf("file %q: the files have more than %d bytes: %w", f.Path, int64(MaxModel), errdefs.ErrInvalidArgument)
		}
		total += f.Size
		if f.Layer < 0 || f.Layer > 0 && !t.Stacked {
			return fmt.Errorf("file %q: layer %d: %w", f.Path, f.Layer, errdefs.ErrInvalidArgument)
		}
		if i > 0 {
			if cmp.Compare(t.Files[i-1].Path, f.Path) > 0 {
				return fmt.Errorf("file %q: files are not sorted: %w", f.Path, errdefs.ErrInvalidArgument)
			}
			if t.Files[i-1].Path == f.Path && !t.Stacked {
				if err := SameFile(t.Files[i-1], *f); err != nil {
					return err
				}
			}
		}
	}
	return t.validateTree()
}

// units are the bytes of blobs with ArchiveChunks that the chunks of files are in. Files with one digest are fetched
// once.
type units map[digest.Digest]struct {
	sum   int64
	files map[digest.Digest]bool
}

// add adds the chunks of a file. It returns an error if the units of the blob have twice its size: whoever made the
// table would have a byte fetched and unpacked for any number of chunks.
func (u units) add(f *File, blobs map[digest.Digest]Blob) error {
	if f.Source == nil || blobs[f.Source.Blob].Archive != ArchiveChunks {
		return nil
	}
	b := blobs[f.Source.Blob]
	of := u[b.Digest]
	if of.files[f.Digest] {
		return nil
	}
	if of.files == nil {
		of.files = map[digest.Digest]bool{}
	}
	of.files[f.Digest] = true
	for _, c := range f.Source.Chunks {
		of.sum += c.Len
	}
	if u[b.Digest] = of; of.sum > 2*b.Size {
		return fmt.Errorf("file %q: the chunks in %s overlap: they have %d bytes, the blob %d: %w", f.Path, b.Digest, of.sum, b.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// validateTree checks the visible files. For a stacked table they are known only if there are no
// archives to unpack.
func (t *Table) validateTree() error {
	files := t.Files
	if t.Stacked {
		var err error
		if files, err = Stack(files); err != nil || len(t.Unpacks) > 0 {
			return err
		}
	}
	if err := CheckParents(files); err != nil {
		return err
	}
	return CheckLinks(files)
}

// SameFile returns an error if a and b, which have the same path, cannot be the same file.
func SameFile(a, b File) error {
	switch {
	case a.Type != b.Type, a.Target != b.Target:
	case a.Type == TypeReg && (a.Size != b.Size || a.Digest != "" && b.Digest != "" && a.Digest != b.Digest):
	default:
		return nil
	}
	return fmt.Errorf("file %q is there twice, with different content%s: %w", a.Path, layersOf(a, b), errdefs.ErrInvalidArgument)
}

func layersOf(a, b File) string {
	if a.Source == nil || b.Source == nil || a.Source.Blob == "" || b.Source.Blob == "" {
		return ""
	}
	if a.Source.Blob == b.Source.Blob {
		return fmt.Sprintf(" (both in %s)", a.Source.Blob)
	}
	return fmt.Sprintf(" (%s and %s)", a.Source.Blob, b.Source.Blob)
}

func (f *File) validate(blobs map[digest.Digest]Blob) error {
	if p, err := CleanPath(f.Path); err != nil {
		return err
	} else if p != f.Path {
		return fmt.Errorf("path %q is not clean: %w", f.Path, errdefs.ErrInvalidArgument)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("file %q: %s: %w", f.Path, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	if f.Mode&^0o777 != 0 {
		return bad("mode %#o has more than permission bits", f.Mode)
	}
	if f.UID > maxID || f.GID > maxID {
		return bad("user %d and group %d", f.UID, f.GID)
	}
	if f.Size < 0 {
		return bad("size %d", f.Size)
	}
	switch f.Type {
	case TypeReg:
		return f.validateSource(blobs)
	case TypeDir:
		if f.Source != nil || f.Size != 0 || f.Digest != "" || f.Target != "" {
			return bad("a directory with content")
		}
	case TypeSymlink:
		if f.Source != nil || f.Size != 0 || f.Digest != "" {
			return bad("a symbolic link with content")
		}
		return checkTarget(f.Path, f.Target)
	default:
		return bad("unknown type %q", f.Type)
	}
	return nil
}

// checkTarget returns an error unless the symbolic link at p with the given target stays inside the
// model.
func checkTarget(p, target string) error {
	if !utf8.ValidString(target) { // JSON could not hold it
		return fmt.Errorf("symbolic link %q: target %.200q is not UTF-8: %w", p, target, errdefs.ErrInvalidArgument)
	}
	in := path.Join(path.Dir(p), target)
	if target == "" || len(target) > maxPath || strings.HasPrefix(target, "/") || strings.ContainsRune(target, 0) || in == ".." || strings.HasPrefix(in, "../") {
		return fmt.Errorf("symbolic link %q: target %q leaves the model: %w", p, target, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (f *File) validateSource(blobs map[digest.Digest]Blob) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("file %q: %s: %w", f.Path, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	if f.Digest != "" {
		if _, err := verify.ParseDigest(string(f.Digest)); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
	}
	src := f.Source
	switch {
	case f.Target != "":
		return bad("a regular file with a link target")
	case src == nil:
		return bad("no source")
	case len(src.Parts) > 0:
		return f.validateParts(blobs)
	case src.Blob == "":
		if f.Digest == "" || int64(len(src.Inline)) != f.Size || src.Offset != 0 || src.Size != 0 || src.Codec != CodecNone || len(src.Chunks) != 0 {
			return bad("inline source does not match")
		}
		return verify.Bytes(f.Digest, src.Inline)
	case len(src.Inline) != 0:
		return bad("both inline and from a blob")
	}
	b, ok := blobs[src.Blob]
	switch {
	case !ok:
		return bad("source blob %s is not in the table", src.Blob)
	case b.Archive == ArchiveChunks && (src.Codec == CodecNone || src.Codec == CodecGzip || src.Codec == CodecZstd):
		if src.Offset != 0 || src.Size != 0 || f.Digest == "" || f.Size > 0 && len(src.Chunks) == 0 {
			return bad("from a blob of chunks, but without digest or chunks, or with a range")
		}
		return f.validateChunks(b)
	case src.Codec != CodecNone || b.Codec != CodecNone:
		return fmt.Errorf("file %q: compressed range %q of a blob: %w", f.Path, src.Codec, errdefs.ErrNotImplemented)
	case src.Offset < 0 || src.Size != f.Size || src.Size > b.Size || src.Offset > b.Size-src.Size:
		return bad("range %d+%d is not within the %d bytes of %s", src.Offset, src.Size, b.Size, b.Digest)
	case b.Archive == ArchiveFragments:
		return bad("blob %s holds only parts of files", b.Digest)
	case b.Archive == ArchiveNone && (src.Offset != 0 || src.Size != b.Size || f.Digest != b.Digest):
		return bad("is not the whole blob %s", b.Digest)
	case len(src.Chunks) > 0 && f.Digest == "":
		return bad("chunks of a file without a digest")
	}
	return f.validateChunks(b)
}

// MaxChunkLen is the largest size of a chunk in its blob, in bytes: incompressible data grows a little, and with stargz
// the frame of a chunk includes the headers that follow.
const MaxChunkLen = MaxChunk + 64<<10

// validateChunks checks the chunks of a file in blob b.
func (f *File) validateChunks(b Blob) error {
	bad := func(c Chunk, format string, args ...any) error {
		return fmt.Errorf("file %q: chunk at %d: %s: %w", f.Path, c.Offset, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	var at int64
	stated := f.Source.Stated()
	for _, c := range f.Source.Chunks {
		if c.Offset != at || c.Size <= 0 || c.Size > MaxChunk || c.Size > f.Size-at {
			return bad(c, "%d bytes do not follow %d, or are more than %d or than the file has", c.Size, at, MaxChunk)
		}
		at += c.Size
		if stated != c.State.Valid(at) && (at < f.Size || c.State != nil) {
			return bad(c, "state of %d bytes after %d: all chunks but the last have one, or none has", len(c.State), at)
		}
		zeros := b.Archive == ArchiveChunks && c.Len == 0
		if zeros != (c.Digest == "") {
			return bad(c, "zeros with a digest, or bytes without")
		}
		if !zeros {
			if _, err := verify.ParseDigest(string(c.Digest)); err != nil {
				return fmt.Errorf("file %q: chunk at %d: %w", f.Path, c.Offset, err)
			}
		}
		switch {
		case b.Archive != ArchiveChunks && (c.At != 0 || c.Len != 0):
			return bad(c, "has its own position in a blob that does not hold chunks")
		case c.At < 0 || c.Len < 0 || c.Len > MaxChunkLen || c.Len > b.Size || c.At > b.Size-c.Len:
			return bad(c, "range %d+%d is not within the %d bytes of %s, or too long", c.At, c.Len, b.Size, b.Digest)
		case f.Source.Codec == CodecNone && c.Len != 0 && c.Len != c.Size:
			return bad(c, "%d bytes are not compressed, but have %d in the blob", c.Size, c.Len)
		}
	}
	if at != f.Size && len(f.Source.Chunks) > 0 {
		return fmt.Errorf("file %q: chunks cover %d of %d bytes: %w", f.Path, at, f.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (f *File) validateParts(blobs map[digest.Digest]Blob) error {
	bad := func(i int, format string, args ...any) error {
		return fmt.Errorf("file %q: part %d: %s: %w", f.Path, i, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	if s := f.Source; s.Blob != "" || s.Offset != 0 || s.Size != 0 || s.Codec != CodecNone || len(s.Chunks) != 0 || len(s.Inline) != 0 {
		return fmt.Errorf("file %q: it has parts and another source: %w", f.Path, errdefs.ErrInvalidArgument)
	}
	var total int64
	for i, p := range f.Source.Parts {
		size := int64(len(p.Inline))
		if p.Blob != "" {
			b, ok := blobs[p.Blob]
			if !ok || b.Archive != ArchiveFragments {
				return bad(i, "blob %s does not hold fragments", p.Blob)
			}
			if p.Offset < 0 || p.Size <= 0 || p.Size > b.Size || p.Offset > b.Size-p.Size {
				return bad(i, "range %d+%d is not within the %d bytes of %s", p.Offset, p.Size, b.Size, b.Digest)
			}
			size = p.Size
		}
		if (p.Blob == "") != (len(p.Inline) > 0) || p.Blob == "" && (p.Offset != 0 || p.Size != 0) || p.Codec != CodecNone || len(p.Chunks) > 0 || len(p.Parts) > 0 {
			return bad(i, "neither inline nor a plain range")
		}
		if size > f.Size-total {
			return bad(i, "the parts have more than the %d bytes of the file", f.Size)
		}
		total += size
	}
	if total != f.Size {
		return fmt.Errorf("file %q: its parts have %d of %d bytes: %w", f.Path, total, f.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (t *Table) validateUnpacks(blobs map[digest.Digest]Blob) error {
	seen := make(map[Unpack]bool, len(t.Unpacks))
	for _, u := range t.Unpacks {
		b, ok := blobs[u.Blob]
		if !ok || b.Archive != ArchiveTar || b.Codec == CodecNone {
			return fmt.Errorf("unpack of %s: not a compressed archive of the table: %w", u.Blob, errdefs.ErrInvalidArgument)
		}
		if u.As != "" {
			if p, err := CleanPath(u.As); err != nil || p != u.As {
				return fmt.Errorf("layer %d (%s): path %q is not clean: %w", b.Layer, b.Digest, u.As, errdefs.ErrInvalidArgument)
			}
		}
		if u.Layer < 0 || u.Layer > 0 && !t.Stacked {
			return fmt.Errorf("unpack of %s: layer %d: %w", u.Blob, u.Layer, errdefs.ErrInvalidArgument)
		}
		if seen[u] {
			return fmt.Errorf("unpack of %s: listed twice: %w", u.Blob, errdefs.ErrInvalidArgument)
		}
		seen[u] = true
	}
	return nil
}

// maxDirs is the largest number of directories of a model: each takes a page of disk, and a few
// bytes of a table can name 64 of them.
const maxDirs = 20_000

// CheckParents returns an error if a path goes through a file or a symbolic link, or if there are
// too many directories.
func CheckParents(files []File) error {
	types := make(map[string]string, len(files))
	dirs := map[string]bool{}
	for _, f := range files {
		types[f.Path] = f.Type
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if typ, ok := types[dir]; ok && typ != TypeDir {
				return fmt.Errorf("file %q: %q is both a file and a directory: %w", f.Path, dir, errdefs.ErrInvalidArgument)
			}
			if dirs[dir] {
				break // its parents are in dirs too
			}
			dirs[dir] = true
		}
		if f.Type == TypeDir {
			dirs[f.Path] = true
		}
		if len(dirs) > maxDirs {
			return &LimitError{LimitDirs, fmt.Errorf("more than %d directories: %w", maxDirs, errdefs.ErrInvalidArgument)}
		}
	}
	return nil
}
