package chunked

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/vbatts/tar-split/tar/storage"
)

// A Chunk is a chunk of a file that was written to a layer.
type Chunk struct {
	filetable.Chunk      // with its place and its digest
	Zeros           bool // the chunk has only zeros
}

// A Member is a member of a tar that was written to a layer of zstd:chunked.
type Member struct {
	File    filetable.File // with a digest, if it is not empty; its source is not used
	Chunks  []Chunk
	Header  []byte // the tar header, byte for byte
	Padding int    // bytes of zeros after the content
	CRC     []byte // CRC-64 of the content with the polynomial of ISO 3309; nil if it is empty
}

// entries returns the entries of a member.
func (m *Member) entries() []entry {
	f := m.File
	at := f.ModTime.UTC().Truncate(time.Second) // as in the header
	if f.ModTime.IsZero() {
		at = time.Unix(0, 0).UTC()
	}
	first := entry{Type: f.Type, Name: f.Path, Mode: int64(f.Mode), UID: int64(f.UID), GID: int64(f.GID), Size: f.Size, ModTime: at.Format(time.RFC3339), Link: f.Target}
	if f.Type == filetable.TypeDir {
		first.Name += "/"
	}
	if len(m.Chunks) == 0 {
		return []entry{first}
	}
	last := m.Chunks[len(m.Chunks)-1]
	first.Digest, first.EndOffset = f.Digest.String(), last.At+last.Len
	list := []entry{first}
	for i, c := range m.Chunks {
		if i > 0 {
			list = append(list, entry{Type: typeChunk, Name: first.Name, ChunkOffset: c.Offset})
		}
		e := &list[i]
		e.Offset = c.At
		if len(m.Chunks) == 1 {
			break
		}
		e.ChunkSize, e.ChunkDigest = c.Size, c.Digest.String()
		if c.Zeros {
			e.ChunkType = chunkZeros
		}
	}
	return list
}

// TOC returns the end of a layer of zstd:chunked, from off on, as Podman reads it: the table of
// contents of members, the data for restoring the tar, which ends with the bytes of end, and the
// footer. It also returns the required annotations of the layer.
func TOC(off int64, members []Member, end []byte) ([]byte, map[string]string, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, nil, err
	}
	defer enc.Close()
	split, err := tarSplit(members, end)
	if err != nil {
		return nil, nil, err
	}
	splitCompressed := enc.EncodeAll(split, nil)
	toc := struct {
		Version int           `json:"version"`
		Entries []entry       `json:"entries"`
		Split   digest.Digest `json:"tarSplitDigest"`
	}{Version: 1, Entries: []entry{}, Split: digest.FromBytes(splitCompressed)}
	for i := range members {
		toc.Entries = append(toc.Entries, members[i].entries()...)
	}
	plain, err := json.Marshal(toc)
	if err != nil {
		return nil, nil, err
	}
	compressed := enc.EncodeAll(plain, nil)

	tocAt := off + skippableHeader
	b := appendSkippable(nil, compressed)
	splitAt := off + int64(len(b)) + skippableHeader
	b = appendSkippable(b, splitCompressed)
	footer := make([]byte, 0, podmanFooter)
	for _, n := range []int64{
		tocAt, int64(len(compressed)), int64(len(plain)), tocType,
		splitAt, int64(len(splitCompressed)), int64(len(split)),
	} {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	b = appendSkippable(b, append(footer, podmanMagic...))
	return b, map[string]string{
		mediatype.PodmanTOCPosition:      fmt.Sprintf("%d:%d:%d:%d", tocAt, len(compressed), len(plain), tocType),
		mediatype.PodmanTOCChecksum:      digest.FromBytes(compressed).String(),
		mediatype.PodmanTarSplitPosition: fmt.Sprintf("%d:%d:%d", splitAt, len(splitCompressed), len(split)),
	}, nil
}

// skippableMagic begins a frame that decoders skip.
const skippableMagic = 0x184D2A50

func appendSkippable(b, p []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...)
}

// tarSplit returns the data for restoring a tar from its files: an entry for each file and for the
// bytes between files.
func tarSplit(members []Member, end []byte) ([]byte, error) {
	var list []storage.Entry
	segment := func(p []byte) {
		if len(p) > 0 {
			list = append(list, storage.Entry{Type: storage.SegmentType, Payload: p})
		}
	}
	for _, m := range members {
		segment(m.Header)
		file := storage.Entry{Type: storage.FileType, Size: m.File.Size, Payload: m.CRC}
		file.SetName(m.entries()[0].Name)
		list = append(list, file)
		segment(make([]byte, m.Padding))
	}
	segment(end)
	var out bytes.Buffer
	packer := storage.NewJSONPacker(&out)
	for _, e := range list {
		if _, err := packer.AddEntry(e); err != nil {
			return nil, fmt.Errorf("tar-split: file %q: %w", e.GetName(), err)
		}
	}
	return out.Bytes(), nil
}
