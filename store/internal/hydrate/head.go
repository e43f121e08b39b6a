package hydrate

import (
	"context"
	"encoding/binary"
	"io"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/staging"
)

// A Sniffer finds the end of a header in the bytes of a file, which are written to it in order.
type Sniffer interface {
	io.Writer
	Done() bool // further bytes are not of the header
}

const (
	// maxHead limits the head of a file, in bytes. It is the largest header that the reference implementation of
	// safetensors reads.
	maxHead = 100_000_000

	// zipTail is the size of the end of a ZIP archive that is fetched first, in bytes. It has the directory: 10,000
	// tensors with names of 50 bytes.
	zipTail = 1 << 20 // 1 MiB

	lengthSize = 8 // of a safetensors header, in bytes
)

// hasHead reports whether the head of a target is fetched first. A file that is verified only as a whole is not read
// before, so it is fetched from its begin.
func (t *Target) hasHead() bool {
	return len(t.Files) == 1 && t.Blob.Size > staging.ChunkSize && !t.Files[0].Layout.Raw()
}

// A head is what a loader reads of a file before it reads tensors. Strangers write files: what their headers say
// decides which groups of the file come first, and nothing else.
//
//	first group → safetensors: its length is known | ZIP: the end of the file | GGUF: twice as many, until it ends
type head struct {
	*ahead
	groups  int     // that were asked for, from the begin of the file
	sniffer Sniffer // of a GGUF file, from its second round on
	seen    int64   // bytes that it has
	over    bool    // nothing more is known
}

// fetchHeads fetches the heads of files, in rounds: what an arrived part of a head shows is fetched in the next one.
func (e *Engine) fetchHeads(ctx context.Context, h *hydration, files []*ahead) {
	heads := make([]head, len(files))
	for i, a := range files {
		heads[i].ahead = a
	}
	for {
		var parts []chunkfile.Part
		for i := range heads {
			first, end := heads[i].next(e.GGUF)
			for g := first; g < end; g++ {
				parts = append(parts, chunkfile.Part{File: heads[i].file, Group: g, Flow: heads[i].flow})
			}
		}
		if len(parts) == 0 || ctx.Err() != nil {
			return
		}
		e.inOrder(ctx, h, parts)
	}
}

// next returns the groups from first up to end that the head needs next; none if it needs no more.
func (d *head) next(gguf func(size int64) Sniffer) (first, end int) {
	l, size := d.file.Layout, d.file.Size
	first = d.groups
	switch {
	case d.over:
		return 0, 0
	case first == 0:
		d.groups = 1
		return 0, 1
	case d.sniffer != nil:
		end = d.sniff()
	default:
		var p [lengthSize + 1]byte
		if d.file.Peek(p[:], 0) != nil {
			break
		}
		if string(p[:4]) == "GGUF" && gguf != nil {
			d.sniffer = gguf(size)
			end = d.sniff()
		} else if from, to := headOf(p, size); from < to {
			first, end = max(first, l.Find(from)), l.Find(to-1)+1
		}
	}
	d.groups, d.over = end, d.sniffer == nil || end == 0
	return first, end
}

// headOf returns the range that loaders read first of a file of a size in bytes that begins with p; 0, 0 if it is not
// known. For GGUF p does not tell it.
func headOf(p [lengthSize + 1]byte, size int64) (from, to int64) {
	n := binary.LittleEndian.Uint64(p[:])
	switch {
	case string(p[:4]) == "PK\x03\x04":
		return max(0, size-zipTail), size
	case p[lengthSize] == '{' && n <= maxHead && int64(n) <= size-lengthSize:
		return 0, lengthSize + int64(n)
	}
	return 0, 0
}

// sniff reads what has arrived of a GGUF header, and returns the end of the groups that it needs next; 0 if it has
// ended, or cannot be read.
func (d *head) sniff() (end int) {
	at, n := d.file.Layout.Part(d.groups - 1)
	buf := make([]byte, 64<<10)
	for !d.sniffer.Done() && d.seen < at+n {
		p := buf[:min(int64(len(buf)), at+n-d.seen)]
		if d.file.Peek(p, d.seen) != nil {
			return 0
		}
		if _, err := d.sniffer.Write(p); err != nil {
			return 0
		}
		d.seen += int64(len(p))
	}
	if d.sniffer.Done() || d.seen >= min(d.file.Size, maxHead) {
		return 0
	}
	return min(2*d.groups, d.file.Layout.Groups())
}
