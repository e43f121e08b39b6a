package ollama

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// The files from which the blobs of tensor layers can be restored.
const (
	headersFile = "ollama/headers.bin"
	indexFile   = "ollama/headers.json"
)

// A headerIndex has what is needed to restore the blobs of tensor layers: their headers, and the
// places of their data in the files.
type headerIndex struct {
	blobs []*indexedBlob
	at    map[digest.Digest]*indexedBlob
}

// An indexedBlob is a blob: a range of headers.bin, followed by ranges of other files.
type indexedBlob struct {
	Digest digest.Digest  `json:"digest"`
	Size   int64          `json:"size"`
	Header *indexedRange  `json:"header,omitempty"`
	Data   []indexedRange `json:"data,omitempty"`

	layer int
	found []indexedRange // candidates for Data
	read  []byte         // the header as read
}

// An indexedRange is a range of a file.
type indexedRange struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`

	at int64 // in the blob
}

func newHeaderIndex() *headerIndex {
	return &headerIndex{at: map[digest.Digest]*indexedBlob{}}
}

// blob adds the blob of layer i, which has the header h or none; it reports whether the blob is
// new.
func (x *headerIndex) blob(i int, l convert.Descriptor, h *header) bool {
	if x.at[l.Digest] != nil {
		return false
	}
	b := &indexedBlob{Digest: l.Digest, Size: l.Size, layer: i}
	if h != nil {
		b.Header = &indexedRange{File: headersFile, Size: h.DataOffset}
		b.read = h.bytes
	}
	x.at[l.Digest] = b
	x.blobs = append(x.blobs, b)
	return true
}

// note records that the bytes of a blob from off on are in a file.
func (x *headerIndex) note(d digest.Digest, off int64, r indexedRange) {
	r.at = off
	x.at[d].found = append(x.at[d].found, r)
}

// locate sets Data.
func (b *indexedBlob) locate() {
	slices.SortStableFunc(b.found, func(x, y indexedRange) int { return cmp.Compare(x.at, y.at) })
	var end int64
	if b.Header != nil {
		end = b.Header.Size
	}
	for _, r := range b.found {
		if r.at != end || r.Size == 0 {
			continue // also under another name
		}
		end += r.Size
		b.Data = append(b.Data, r)
	}
}

// add adds the headers, as ranges of the blobs, and the index. The digest of the headers is that of
// the bytes read: it does not match if the blobs, which are verified, have others.
func (x *headerIndex) add(to *convert.Builder) error {
	var parts []filetable.Source
	sum := digest.Canonical.Digester()
	var at int64
	layer := 0
	for _, b := range x.blobs {
		b.locate()
		if b.Header == nil {
			continue
		}
		if len(parts) == 0 {
			layer = b.layer
		}
		parts = append(parts, filetable.Source{Blob: b.Digest, Size: b.Header.Size})
		sum.Hash().Write(b.read) // never returns an error
		b.Header.Offset = at
		at += b.Header.Size
	}
	if len(parts) > 0 {
		if err := to.Assemble(layer, headersFile, parts, sum.Digest()); err != nil {
			return err
		}
	}
	p, err := json.Marshal(map[string]any{"blobs": x.blobs})
	if err != nil {
		return fmt.Errorf("encode %s: %w", indexFile, err)
	}
	to.Generate(indexFile, append(p, '\n'))
	return nil
}
