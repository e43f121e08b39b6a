package chunked

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// landmarks are files of one byte that stargz adds to a layer for its own use.
var landmarks = []string{estargz.PrefetchLandmark, estargz.NoPrefetchLandmark}

// An entry is an entry of a table of contents, of all formats. Unused fields are not decoded.
type entry struct {
	Type        string `json:"type"`
	Name        string `json:"name"`
	Link        string `json:"linkName,omitempty"`
	Mode        int64  `json:"mode,omitempty"`
	UID         int64  `json:"uid,omitempty"`
	GID         int64  `json:"gid,omitempty"`
	Size        int64  `json:"size,omitempty"`
	ModTime     string `json:"modtime,omitempty"`
	Digest      string `json:"digest,omitempty"`      // of the file
	Offset      int64  `json:"offset,omitempty"`      // of the chunk in the blob
	EndOffset   int64  `json:"endOffset,omitempty"`   // of the file in the blob; Podman
	InnerOffset int64  `json:"innerOffset,omitempty"` // of the chunk in the uncompressed data at Offset; stargz
	ChunkSize   int64  `json:"chunkSize,omitempty"`   // zero means to the end of the file
	ChunkOffset int64  `json:"chunkOffset,omitempty"` // in the file
	ChunkDigest string `json:"chunkDigest,omitempty"`
	ChunkType   string `json:"chunkType,omitempty"` // Podman
}

// The types of an entry.
const (
	typeReg      = "reg"
	typeDir      = "dir"
	typeSymlink  = "symlink"
	typeHardlink = "hardlink"
	typeChunk    = "chunk"

	chunkZeros = "zeros"
)

// read reads the table of contents of a layer.
func (t *toc) read(b *blob, room Room) ([]entry, error) {
	if t.size == 0 {
		if err := t.ask(b); err != nil {
			return nil, err
		}
	}
	if err := room(t.size); err != nil {
		return nil, err
	}
	p, err := b.read(t.off, t.size)
	if err != nil {
		return nil, err
	}
	if t.checksum != "" {
		if err := verify.Bytes(t.checksum, p); err != nil {
			return nil, opaque("%v", err)
		}
	}
	if t.codec == filetable.CodecGzip {
		return t.readGzip(p, room)
	}
	if err := room(tocWeight * t.plainSize); err != nil {
		return nil, err
	}
	plain, err := unpack(p, t.plainSize)
	if err != nil {
		return nil, opaque("%v", err)
	}
	if t.digest != "" {
		if err := verify.Bytes(t.digest, plain); err != nil {
			return nil, opaque("%v", err)
		}
	}
	return decode(bytes.NewReader(plain), t.plainSize)
}

// unpack decompresses at most size bytes of zstd. It takes no other memory for the window that the frame declares,
// which is that of the writer's level and usually larger than the table.
func unpack(p []byte, size int64) ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(filetable.MaxWindow))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(p, make([]byte, 0, size))
}

// readGzip reads the table of contents of eStargz: a tar with one file.
func (t *toc) readGzip(p []byte, room Room) ([]entry, error) {
	plain, err := gzip.NewReader(bytes.NewReader(p))
	if err != nil {
		return nil, opaque("%v", err)
	}
	plain.Multistream(false)
	tr := tar.NewReader(io.LimitReader(plain, maxTOC+1<<20))
	hdr, err := tr.Next()
	if err != nil {
		return nil, opaque("%v", err)
	}
	if hdr.Name != estargz.TOCTarName || hdr.Typeflag != tar.TypeReg || hdr.Size < 1 || hdr.Size > maxTOC {
		return nil, opaque("%.100q of %d bytes is not a table of contents", hdr.Name, hdr.Size)
	}
	if err := room(tocWeight * hdr.Size); err != nil {
		return nil, err
	}
	return decode(verify.NewReader(tr, t.digest, hdr.Size), hdr.Size)
}

// decode decodes the JSON of a table of contents of size bytes, which nothing may follow.
func decode(r io.Reader, size int64) ([]entry, error) {
	short := &shortValues{r: r}
	d := json.NewDecoder(short)
	short.d = d
	entries, err := decodeObject(d, size)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return entries, nil
		}
		err = errors.Join(errors.New("something after the table"), err)
	}
	return nil, opaque("%v", err)
}

// shortValues reads the JSON that d decodes. It returns an error instead of the rest of a value of
// more than maxValue bytes, which d would keep.
type shortValues struct {
	r io.Reader
	d *json.Decoder
	n int64 // bytes read
}

func (s *shortValues) Read(p []byte) (int, error) {
	if s.n-s.d.InputOffset() > maxValue {
		return 0, fmt.Errorf("a value of more than %d bytes", maxValue)
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	return n, err
}

func decodeObject(d *json.Decoder, size int64) ([]entry, error) {
	if err := expect(d, json.Delim('{')); err != nil {
		return nil, err
	}
	var entries []entry
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := key.(string)
		if known := name == "version" || name == "entries"; known && seen[name] {
			return nil, fmt.Errorf("%q twice", name)
		}
		switch name {
		case "version":
			seen[name] = true
			var v int
			if err := d.Decode(&v); err != nil || v != 1 {
				return nil, fmt.Errorf("version %d: %w", v, errors.Join(err, errors.ErrUnsupported))
			}
		case "entries":
			seen[name] = true
			if entries, err = decodeEntries(d, size); err != nil {
				return nil, err
			}
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return nil, err
			}
		}
	}
	if !seen["version"] || !seen["entries"] {
		return nil, errors.New("no version or no entries")
	}
	return entries, expect(d, json.Delim('}'))
}

// decodeEntries decodes the entries of a table of contents of size bytes.
func decodeEntries(d *json.Decoder, size int64) ([]entry, error) {
	if err := expect(d, json.Delim('[')); err != nil {
		return nil, err
	}
	entries := make([]entry, 0, min(size/shortEntry, maxEntries)) // growing it would need twice the memory
	members := 0
	for d.More() {
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("more than %d entries", maxEntries)
		}
		entries = append(entries, entry{})
		e := &entries[len(entries)-1]
		if err := d.Decode(e); err != nil {
			return nil, err
		}
		if e.Type == typeChunk {
			continue
		}
		if members++; members > MaxMembers {
			return nil, fmt.Errorf("more than %d files", MaxMembers)
		}
	}
	return entries, expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("%v where %v should be", t, want)
	}
	return nil
}
