package filetable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Version is the version of a file table; StackedVersion is the version of a table that is Stacked.
const (
	Version        = 1
	StackedVersion = 2
)

// MaxSize is the largest encoded file table that Decode accepts, in bytes. A thousand files with a
// digest each take about 400 KiB.
const MaxSize = 64 << 20 // 64 MiB

// A Table is the file table of one model: every file with its attributes and the source of its
// bytes. After parsing, it is the only description of a model.
//
// Field names follow estargz.TOCEntry where the meaning is the same.
// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/estargz/types.go
type Table struct {
	Version int    `json:"version"`
	Origin  Origin `json:"origin"`

	// Blobs are the blobs that contain the files, in the order of the origin manifest. Each digest
	// occurs once.
	Blobs []Blob `json:"blobs,omitempty"`

	// Files are sorted by path. A path can occur twice if the digests of both files are not known
	// yet; Resolve compares them later.
	Files []File `json:"files,omitempty"`

	// Unpacks are the archives whose files are unknown until they are unpacked.
	Unpacks []Unpack `json:"unpacks,omitempty"`

	// Stacked reports that files and archives are layers of an image, numbered by Layer: the
	// visible files are those that Stack returns. A path can then occur with different content.
	Stacked bool `json:"stacked,omitempty"`
}

// Origin describes the source of a table.
type Origin struct {
	Format  string        `json:"format"`  // such as "ollama", see convert/mediatype
	Digest  digest.Digest `json:"digest"`  // of the origin manifest, byte for byte as served
	Mapping int           `json:"mapping"` // version of the mapping rules

	// Prefix is the directory of the model in a mount, as a clean path; empty if the model is all of it. All paths
	// of a table are relative to the directory of the model, and so are those in signatures: Place adds the prefix.
	Prefix string `json:"prefix,omitempty"`
}

// Archive is the layout of files in a blob.
type Archive string

// The archives of a Blob.
const (
	ArchiveNone      Archive = ""          // the blob is one file
	ArchiveTar       Archive = "tar"       // POSIX, PAX or GNU tar
	ArchiveFragments Archive = "fragments" // parts of files are ranges of the blob
	ArchiveChunks    Archive = "chunks"    // chunks of files, each compressed individually
)

// Codec is the compression of a blob or of a range of it.
type Codec string

// The codecs of a Blob.
const (
	CodecNone Codec = ""
	CodecGzip Codec = "gzip"
	CodecZstd Codec = "zstd"
)

// Blob is one blob of the origin.
//
// A raw blob (ArchiveNone, CodecNone) is stored as an object without conversion. A tar without codec has its members
// in Table.Files, by offset; a tar with a codec has an entry in Table.Unpacks. A blob with ArchiveChunks has no codec
// of its own and is not fetched as a whole, unless its chunks cannot be read: its files are in Table.Files, with
// digest and chunks, and the bytes between the chunks are ignored.
type Blob struct {
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"` // bytes as transferred
	Archive Archive       `json:"archive,omitempty"`
	Codec   Codec         `json:"codec,omitempty"`

	// DiffID is the digest of the uncompressed blob if the origin has it; it is verified. Empty for
	// blobs without codec, where it equals Digest.
	DiffID digest.Digest `json:"diffID,omitempty"`

	// Index is the digest of the members of an uncompressed tar (IndexDigest) whose headers were read before the digest
	// of the blob was verified: the members of the verified blob must have it.
	Index digest.Digest `json:"index,omitempty"`

	// Files is the digest of the files of a compressed tar (FilesDigest) if the origin lists them: the unpacked ones
	// must have it.
	Files digest.Digest `json:"files,omitempty"`

	// Layer is the position in the origin manifest, from 0. It is used in messages.
	Layer int `json:"layer"`
}

// PlainTar reports whether b is an uncompressed tar.
func (b Blob) PlainTar() bool { return b.Archive == ArchiveTar && b.Codec == CodecNone }

// The types of a File.
const (
	TypeReg     = "reg"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
)

// File is one entry of a table.
type File struct {
	Path    string        `json:"name"` // clean, relative, slash-separated; see CleanPath
	Type    string        `json:"type"` // TypeReg, TypeDir or TypeSymlink
	Mode    uint32        `json:"mode"` // permission bits only, 0o777
	UID     uint32        `json:"uid,omitempty"`
	GID     uint32        `json:"gid,omitempty"`
	ModTime time.Time     `json:"modtime,omitzero"`
	Size    int64         `json:"size,omitempty"`     // bytes, TypeReg
	Digest  digest.Digest `json:"digest,omitempty"`   // of the content, if known before the content is fetched
	Target  string        `json:"linkName,omitempty"` // TypeSymlink
	Source  *Source       `json:"source,omitempty"`   // TypeReg

	// Layer is the position in a Stacked table; 0 is the lowest.
	Layer int `json:"layer,omitempty"`
}

// Source is the source of the bytes of a regular file: a range of a blob, inline bytes, or a
// sequence of these.
type Source struct {
	Blob   digest.Digest `json:"blob,omitempty"`
	Offset int64         `json:"offset,omitempty"` // in the blob
	Size   int64         `json:"size,omitempty"`   // bytes in the blob
	Codec  Codec         `json:"codec,omitempty"`  // of the range

	// Chunks cover the file in order, without gaps, if the origin has their digests. Such a file
	// also has a digest, and can be read before it is complete.
	Chunks []Chunk `json:"chunks,omitempty"`

	// Inline is the content of a small generated file. Blob is then empty.
	Inline []byte `json:"inline,omitempty"`

	// Parts are concatenated to the file; each is Inline or a range of a blob with
	// ArchiveFragments. All other fields are then empty. If the table has no digest for such a
	// file, the digest is known only when the file is assembled.
	Parts []Source `json:"parts,omitempty"`
}

// Stated reports whether each chunk can be verified as part of the file, see Chunk.State.
func (s *Source) Stated() bool {
	return len(s.Chunks) == 1 || len(s.Chunks) > 1 && s.Chunks[0].State != nil
}

// MaxChunk is the largest size of a chunk, in bytes: a reader waits for a whole chunk, which is
// held in memory.
const MaxChunk = 4 << 20 // 4 MiB

// Chunk is a range of a file that can be verified individually.
type Chunk struct {
	Offset int64         `json:"chunkOffset"` // in the file
	Size   int64         `json:"chunkSize"`   // from 1 to MaxChunk
	Digest digest.Digest `json:"chunkDigest,omitempty"`

	// State is the state of the file's digest after the chunk (verify.State), if the table has
	// states: each chunk except the last has one, including chunks of zeros. With states a chunk is
	// verified individually, and when all chunks are correct the file has its digest; Digest then
	// only identifies equal chunks.
	State verify.State `json:"chunkState,omitempty"`

	// At and Len locate the chunk in a blob with ArchiveChunks. The range [At, At+Len) is one unit
	// of the codec of the source (one or more zstd frames, a gzip member), which starts with the
	// chunk and can contain more data after it; without a codec it is the bytes of the chunk. A
	// chunk without Len is zeros and has no digest. In any other blob both are 0: the chunk is at
	// Source.Offset + Offset.
	At  int64 `json:"offset,omitempty"`
	Len int64 `json:"compressedSize,omitempty"`
}

// Location is the position of the bytes of a chunk: an object and an offset.
type Location struct {
	Object digest.Digest // empty: not stored
	Off    int64
}

// Unpack is an archive whose content is unknown until it is unpacked.
type Unpack struct {
	Blob digest.Digest `json:"blob"`

	// As is the path of the archive in the origin, if any. An archive with exactly one regular file
	// whose path has no directory and equals the base name of As is placed at As (tools before 2025
	// dropped the directory); any other archive keeps its own paths.
	As string `json:"as,omitempty"`

	// Layer is the position of its files in a Stacked table.
	Layer int `json:"layer,omitempty"`
}

// Encode returns the canonical JSON of t: equal tables have equal encodings.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

// Parse is Decode for a table of others. It also returns errdefs.ErrInvalidArgument for one that is not canonical, so
// that nothing in it is read in another way, or not at all: a key twice, in another spelling or unknown.
func Parse(p []byte) (*Table, error) {
	t, err := Decode(p)
	if err != nil {
		return nil, err
	}
	again, err := t.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(p, again) {
		return nil, fmt.Errorf("file table: it is not in the form that ballast writes: %w", errdefs.ErrInvalidArgument)
	}
	return t, nil
}

// Decode parses and validates a table. It returns errdefs.ErrInvalidArgument for an invalid table
// and errdefs.ErrNotImplemented for a later version.
func Decode(p []byte) (*Table, error) {
	if len(p) > MaxSize {
		return nil, fmt.Errorf("file table has %d bytes, more than %d: %w", len(p), MaxSize, errdefs.ErrInvalidArgument)
	}
	if err := checkCounts(p); err != nil {
		return nil, err
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

// maxNested limits the chunks and parts of all files of an encoded table: 4 MiB each make 4 TiB, and MaxSize is not
// enough for that many with digests.
const maxNested = 1 << 20

// maxLevels limits the objects and lists of an encoded table in each other. Chunks of parts have eight.
const maxLevels = 64

// checkCounts returns an error for an encoded table with more objects than one can have, before memory is allocated
// for each: those that are empty take fifty times their size. So does anything else in a list of objects, which no
// table has.
func checkCounts(p []byte) error {
	alien := fmt.Errorf("file table: it is not in the form that ballast writes: %w", errdefs.ErrInvalidArgument)
	var depth, entries, nested int // of objects: the table has depth 1, its files and blobs 2, sources 3, chunks and parts 4
	var levels int                 // of objects and lists
	var lists uint64               // a bit for each level, the innermost last: 1 for a list
	for i := 0; i < len(p); i++ {
		if levels > maxLevels || lists&1 == 1 && !strings.ContainsRune("{,] \t\r\n", rune(p[i])) {
			return alien
		}
		switch p[i] {
		case '"':
			for i++; i < len(p) && p[i] != '"'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
		case '[':
			levels, lists = levels+1, lists<<1|1
		case ']':
			levels, lists = levels-1, lists>>1
		case '{':
			levels, lists = levels+1, lists<<1
			if depth++; depth == 2 {
				entries++
			} else if depth > 3 {
				nested++
			}
		case '}':
			levels, lists = levels-1, lists>>1
			depth--
		case 'n': // null
			return alien
		}
	}
	if entries > maxFiles+1 || nested > maxNested { // with the origin
		return &LimitError{LimitFiles, fmt.Errorf("file table has %d entries and %d parts of files, more than %d and %d: %w", entries, nested, maxFiles, maxNested, errdefs.ErrInvalidArgument)}
	}
	return nil
}
