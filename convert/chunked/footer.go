package chunked

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
)

const (
	// tocType is the type of a table of contents in JSON, in the format of CRFS; there is no other.
	tocType = 1

	// skippableHeader is the size of magic and length of a skippable frame, in bytes.
	skippableHeader = 8

	podmanFooter = 64 // bytes, zstd:chunked of Podman
)

// The ends of footers.
var (
	stargzMagic = []byte("GnUlInUx")
	podmanMagic = []byte("GNUlInUx")
)

// A position is the place of a table of contents.
type position struct {
	off, size int64 // of the compressed table
	plainSize int64 // bytes
	kind      int64
}

// parsePosition parses the value of an annotation: offset:size:uncompressed size:type.
func parsePosition(s string) (position, error) {
	fields := strings.Split(s, ":")
	if len(s) > 100 || len(fields) != 4 {
		return position{}, opaque("position %.100q", s)
	}
	var p position
	for i, to := range []*int64{&p.off, &p.size, &p.plainSize, &p.kind} {
		n, err := strconv.ParseUint(fields[i], 10, 63)
		if err != nil {
			return position{}, opaque("position %.100q: %v", s, err)
		}
		*to = int64(n)
	}
	return p, nil
}

// ask reads the place of the table of contents from the footer of the layer.
func (t *toc) ask(b *blob) error {
	p, err := b.end()
	if err != nil {
		return err
	}
	if t.codec == filetable.CodecZstd {
		pos, err := parseZstdFooter(p)
		if err != nil {
			return err
		}
		return t.set(pos, b.size)
	}
	off, err := parseGzipFooter(p)
	if err != nil {
		return err
	}
	size := b.size - estargz.FooterSize - off
	if off < 1 || size < 1 || size > maxCompressed {
		return opaque("table of contents at %d of %d bytes", off, b.size)
	}
	t.off, t.size = off, size
	return nil
}

// parseZstdFooter parses the footer at the end of p, of either kind of zstd:chunked.
func parseZstdFooter(p []byte) (position, error) {
	var f []byte
	switch {
	case len(p) >= zstdchunked.FooterSize && bytes.HasSuffix(p, stargzMagic):
		f = p[len(p)-zstdchunked.FooterSize:]
	case len(p) >= podmanFooter && bytes.HasSuffix(p, podmanMagic):
		f = p[len(p)-podmanFooter:]
	default:
		return position{}, opaque("no footer")
	}
	var n [4]int64
	for i := range n {
		v := binary.LittleEndian.Uint64(f[8*i:])
		if v > math.MaxInt64 {
			return position{}, opaque("footer with %d", v)
		}
		n[i] = int64(v)
	}
	return position{off: n[0], size: n[1], plainSize: n[2], kind: n[3]}, nil
}

// parseGzipFooter returns the offset of the table of contents in the footer of eStargz at the end
// of p.
func parseGzipFooter(p []byte) (int64, error) {
	f := p[max(0, len(p)-estargz.FooterSize):]
	if len(f) < estargz.FooterSize || f[10] != 26 || f[11] != 0 { // else ParseFooter may panic: the length of the extra field
		return 0, opaque("no footer")
	}
	off, _, _, err := new(estargz.GzipDecompressor).ParseFooter(f)
	if err != nil {
		return 0, opaque("footer: %v", err)
	}
	return off, nil
}
