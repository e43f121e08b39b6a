package chunked

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
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

// A written is an entry of a table of contents as Podman writes it.
type written struct {
	Type        string     `json:"type"`
	Name        string     `json:"name"`
	Link        string     `json:"linkName,omitempty"`
	Mode        int64      `json:"mode,omitempty"`
	Size        int64      `json:"size,omitempty"`
	ModTime     *time.Time `json:"modtime,omitempty"`
	Digest      string     `json:"digest,omitempty"`
	Offset      int64      `json:"offset,omitempty"`
	EndOffset   int64      `json:"endOffset,omitempty"`
	ChunkSize   int64      `json:"chunkSize,omitempty"`
	ChunkOffset int64      `json:"chunkOffset,omitempty"`
	ChunkDigest string     `json:"chunkDigest,omitempty"`
	ChunkType   string     `json:"chunkType,omitempty"`
}

// entries returns the entries of a member.
func (m *Member) entries() []written {
	f := m.File
	at := f.ModTime.UTC().Truncate(time.Second) // as in the header
	if f.ModTime.IsZero() {
		at = time.Unix(0, 0).UTC()
	}
	first := written{Type: f.Type, Name: f.Path, Mode: int64(f.Mode), Size: f.Size, ModTime: &at, Link: f.Target}
	if f.Type == filetable.TypeDir {
		first.Name += "/"
	}
	if len(m.Chunks) == 0 {
		return []written{first}
	}
	last := m.Chunks[len(m.Chunks)-1]
	first.Digest, first.EndOffset = f.Digest.String(), last.At+last.Len
	list := []written{first}
	for i, c := range m.Chunks {
		if i > 0 {
			list = append(list, written{Type: typeChunk, Name: first.Name, ChunkOffset: c.Offset})
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

// AppendTOC appends to b the end of a layer of zstd:chunked as Podman reads it: the table of
// contents of members, the data for restoring the tar, which ends with the bytes of end, and the
// footer. off is the offset of b in the layer. It returns the required annotations of the layer.
func AppendTOC(b []byte, off int64, members []Member, end []byte) ([]byte, map[string]string, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, nil, err
	}
	defer enc.Close()
	split := tarSplit(members, end)
	splitCompressed := enc.EncodeAll(split, nil)
	toc := struct {
		Version int           `json:"version"`
		Entries []written     `json:"entries"`
		Split   digest.Digest `json:"tarSplitDigest"`
	}{Version: 1, Entries: []written{}, Split: digest.FromBytes(splitCompressed)}
	for i := range members {
		toc.Entries = append(toc.Entries, members[i].entries()...)
	}
	plain, err := json.Marshal(toc)
	if err != nil {
		return nil, nil, err
	}
	compressed := enc.EncodeAll(plain, nil)

	start := len(b)
	at := func() int64 { return off + int64(len(b)-start) + skippableHeader } // of the next appended byte
	footer := make([]byte, 0, podmanFooter)
	tocAt := at()
	b = appendSkippable(b, compressed)
	splitAt := at()
	b = appendSkippable(b, splitCompressed)
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

// The types of a line of tar-split.
// https://github.com/vbatts/tar-split/blob/v0.12.2/tar/storage/entry.go
const (
	splitFile    = 1
	splitSegment = 2
)

// tarSplit returns the data for restoring a tar from its files: a line for each file and for the
// bytes between files.
func tarSplit(members []Member, end []byte) []byte {
	var out bytes.Buffer
	n := 0
	line := func(format string, args ...any) {
		fmt.Fprintf(&out, format+`,"position":%d}`+"\n", append(args, n)...)
		n++
	}
	segment := func(p []byte) {
		if len(p) > 0 {
			line(`{"type":%d,"payload":"%s"`, splitSegment, base64.StdEncoding.EncodeToString(p))
		}
	}
	for _, m := range members {
		segment(m.Header)
		name, err := json.Marshal(m.entries()[0].Name)
		if err != nil {
			panic("chunked: internal error: " + err.Error())
		}
		if m.CRC == nil {
			line(`{"type":%d,"name":%s,"payload":null`, splitFile, name)
			continue
		}
		line(`{"type":%d,"name":%s,"size":%d,"payload":"%s"`, splitFile, name, m.File.Size, base64.StdEncoding.EncodeToString(m.CRC))
		segment(make([]byte, m.Padding))
	}
	segment(end)
	return out.Bytes()
}
