package filetable

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Version is the version of a file table, StackedVersion that of one that is Stacked.
const (
	Version        = 1
	StackedVersion = 2
)

// MaxTableSize is the largest encoded file table read, in bytes. A thousand files
// with a digest each take about 400 KiB.
const MaxSize = 64 << 20 // 64 MiB

// A Table is the file table of one model: every file with its attributes and the
// place its bytes come from. It is the only thing that is known about a model once
// its format has been parsed.
//
// The names of the fields follow estargz.TOCEntry where they mean the same.
// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/estargz/types.go
type Table struct {
	Version int    `json:"version"`
	Origin  Origin `json:"origin"`

	// Blobs are the blobs that files come from, in the order of the origin manifest,
	// each digest once.
	Blobs []Blob `json:"blobs,omitempty"`

	// Files are sorted by path. A path can occur twice when the digests of both are
	// not known yet; Resolve settles whether they are the same file.
	Files []File `json:"files,omitempty"`

	// Unpacks are the archives whose files are known only once they were unpacked.
	Unpacks []Unpack `json:"unpacks,omitempty"`

	// Stacked says that files and archives are layers of an image, by their Layer: the files that are seen
	// are those that Stack returns. A path can occur with different content then.
	Stacked bool `json:"stacked,omitempty"`
}

// Origin says what a table was made from.
type Origin struct {
	Format  string        `json:"format"`  // such as "ollama", see convert/mediatype
	Digest  digest.Digest `json:"digest"`  // of the origin manifest, byte for byte as served
	Mapping int           `json:"mapping"` // version of the mapping rules
}

// Archive says how the files of a blob are laid out.
type Archive string

// The archives of a Blob.
const (
	ArchiveNone      Archive = ""          // the blob is one file
	ArchiveTar       Archive = "tar"       // POSIX, PAX or GNU tar
	ArchiveFragments Archive = "fragments" // ranges of the blob are parts of files
	ArchiveChunks    Archive = "chunks"    // chunks of files, each compressed by itself
)

// Codec says how the bytes of a blob or of a range of it are compressed.
type Codec string

// The codecs of a Blob.
const (
	CodecNone Codec = ""
	CodecGzip Codec = "gzip"
	CodecZstd Codec = "zstd"
)

// Blob is one blob of the origin.
//
// A raw blob (ArchiveNone, CodecNone) is an object as it is. A tar without codec has its
// members in Table.Files, by offset; with a codec it has a line in Table.Unpacks. A blob with
// ArchiveChunks has no codec of its own and is never fetched whole: its files are in Table.Files,
// with digest and chunks, and what lies between the chunks is of no interest.
type Blob struct {
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"` // bytes as transferred
	Archive Archive       `json:"archive,omitempty"`
	Codec   Codec         `json:"codec,omitempty"`

	// DiffID is the digest of the uncompressed blob where the origin gives it; it is
	// checked. Empty for blobs without codec, where it equals Digest.
	DiffID digest.Digest `json:"diffID,omitempty"`

	// Layer is the position in the origin manifest, from 0, for messages.
	Layer int `json:"layer"`
}

// The types of a File.
const (
	TypeReg     = "reg"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
)

// File is one line of a table.
type File struct {
	Path    string        `json:"name"` // clean, relative, slash-separated; see CleanPath
	Type    string        `json:"type"` // TypeReg, TypeDir or TypeSymlink
	Mode    uint32        `json:"mode"` // permission bits only, 0o777
	ModTime time.Time     `json:"modtime,omitzero"`
	Size    int64         `json:"size,omitempty"`     // bytes, TypeReg
	Digest  digest.Digest `json:"digest,omitempty"`   // of the content, where known before it is fetched
	Target  string        `json:"linkName,omitempty"` // TypeSymlink
	Source  *Source       `json:"source,omitempty"`   // TypeReg

	// Layer is the position in a table that is Stacked, from 0, the lowest.
	Layer int `json:"layer,omitempty"`
}

// Source says where the bytes of a regular file come from: a range of a blob, inline bytes,
// or several of these in a row.
type Source struct {
	Blob   digest.Digest `json:"blob,omitempty"`
	Offset int64         `json:"offset,omitempty"` // in the blob
	Size   int64         `json:"size,omitempty"`   // bytes in the blob
	Codec  Codec         `json:"codec,omitempty"`  // of the range

	// Chunks cover the file in order, without gaps, where the origin gives their digests. Such a
	// file has a digest too, and can be read before it is complete.
	Chunks []Chunk `json:"chunks,omitempty"`

	// Inline is the content itself, for small generated files. Blob is empty then.
	Inline []byte `json:"inline,omitempty"`

	// Parts make up the file, one after the other; each is Inline or a range of a blob
	// with ArchiveFragments. All other fields are empty then. The digest of such a file, if
	// the table does not have it, is known only once it was put together.
	Parts []Source `json:"parts,omitempty"`
}

// Stated says whether each chunk can be verified as a part of the file, see Chunk.State.
func (s *Source) Stated() bool {
	return len(s.Chunks) == 1 || len(s.Chunks) > 1 && s.Chunks[0].State != nil
}

// MaxChunk is the largest size of a chunk, in bytes: a reader waits for a whole chunk, and
// memory holds it.
const MaxChunk = 4 << 20 // 4 MiB

// Chunk is a range of a file that can be verified by itself.
type Chunk struct {
	Offset int64         `json:"chunkOffset"` // in the file
	Size   int64         `json:"chunkSize"`   // from 1 to MaxChunk
	Digest digest.Digest `json:"chunkDigest,omitempty"`

	// State is that of the file's digest after the chunk (verify.State), where the table has such: after each
	// chunk but the last, zeros too. With them a chunk is verified by itself, and when all are right the
	// file has its digest; Digest only says which chunks are equal.
	State verify.State `json:"chunkState,omitempty"`

	// At and Len say where the chunk is in a blob with ArchiveChunks: the range [At, At+Len)
	// is one unit of the codec of the source (a zstd frame or several, a gzip member), which begins
	// with the chunk and can have more after it, or the bytes themselves if the source has none. Without Len the chunk is zeros, and has no
	// digest. In any other blob both are 0: the chunk is at Source.Offset + Offset.
	At  int64 `json:"offset,omitempty"`
	Len int64 `json:"compressedSize,omitempty"`
}

// Location is where the bytes of a chunk are: in an object, at an offset.
type Location struct {
	Object digest.Digest // empty: nowhere
	Off    int64
}

// Unpack is an archive that is opaque until it is unpacked.
type Unpack struct {
	Blob digest.Digest `json:"blob"`

	// As is the path the origin gives for the archive, if any. An archive with exactly
	// one regular file whose path has no directory and equals the base name of As is
	// placed at As (writers before 2025 dropped the directory); any other archive keeps
	// its own paths.
	As string `json:"as,omitempty"`

	// Layer is the position of its files in a table that is Stacked.
	Layer int `json:"layer,omitempty"`
}

// Encode returns the canonical JSON of t: equal tables give equal bytes.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

// Decode reads a table and validates it. It returns errdefs.ErrInvalidArgument for a
// table that breaks a rule and errdefs.ErrNotImplemented for one of a later version.
func Decode(p []byte) (*Table, error) {
	if len(p) > MaxSize {
		return nil, fmt.Errorf("file table has %d bytes, more than %d: %w", len(p), MaxSize, errdefs.ErrInvalidArgument)
	}
	var t Table
	if err := json.Unmarshal(p, &t); err != nil {
		return nil, fmt.Errorf("file table: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return &t, nil
}
