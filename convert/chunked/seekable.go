package chunked

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/containerd/errdefs"
)

// The seek table is a skippable frame at the end of a zstd file:
//
//	magic, size of the rest │ for each frame: size, uncompressed size, checksum or not │ footer
//
// The footer is the number of frames, a byte that says whether there are checksums, and a magic
// number. All numbers are 32 bits, little-endian.
const (
	seekMagic       = 0x184D2A5E
	seekFooterMagic = 0x8F92EAB1
	seekFooter      = 9 // bytes
	seekChecksums   = 1 << 7
	seekReserved    = 0x7c

	// maxFrames is the largest number of frames read: 4 TiB in frames of a chunk.
	maxFrames = 1 << 20
)

// A Frame is an independent frame of a zstd file.
type Frame struct {
	Size  int64 // bytes, compressed
	Plain int64 // bytes, uncompressed
}

// AppendSeekTable appends the seek table of frames, without checksums: those of the format have 32
// bits, and who makes the file knows better ones. It returns errdefs.ErrInvalidArgument for what the
// format can not say.
func AppendSeekTable(b []byte, frames []Frame) ([]byte, error) {
	size := 8*len(frames) + seekFooter
	if len(frames) > maxFrames {
		return nil, fmt.Errorf("seek table of %d frames, more than %d: %w", len(frames), maxFrames, errdefs.ErrInvalidArgument)
	}
	b = binary.LittleEndian.AppendUint32(b, seekMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	for _, f := range frames {
		if f.Size < 0 || f.Size > math.MaxUint32 || f.Plain < 0 || f.Plain > math.MaxUint32 {
			return nil, fmt.Errorf("seek table: frame of %d bytes, %d uncompressed: %w", f.Size, f.Plain, errdefs.ErrInvalidArgument)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(f.Size))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.Plain))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(frames)))
	b = append(b, 0)
	return binary.LittleEndian.AppendUint32(b, seekFooterMagic), nil
}

// ReadSeekTable returns the frames of a zstd file of the given size in bytes, which fill it up to the
// seek table. Nothing vouches for them: who reads a frame has to have a digest from elsewhere. It
// returns an error that is ErrOpaque for a file without a seek table, or with a wrong one, and the
// errors of r.
func ReadSeekTable(r io.ReaderAt, size int64) ([]Frame, error) {
	src := &blob{r: r, size: size}
	frames, err := readSeekTable(src)
	if src.err != nil {
		return nil, fmt.Errorf("seek table: %w", src.err)
	}
	if err != nil {
		return nil, fmt.Errorf("seek table: %w", err)
	}
	return frames, nil
}

func readSeekTable(src *blob) ([]Frame, error) {
	tail, err := src.end()
	if err != nil {
		return nil, err
	}
	if len(tail) < seekFooter+skippableHeader {
		return nil, opaque("%d bytes are too short", src.size)
	}
	footer := tail[len(tail)-seekFooter:]
	count, flags := int64(binary.LittleEndian.Uint32(footer)), footer[4]
	switch {
	case binary.LittleEndian.Uint32(footer[5:]) != seekFooterMagic:
		return nil, opaque("no footer")
	case flags&seekReserved != 0:
		return nil, opaque("unknown descriptor %#x", flags)
	case count > maxFrames:
		return nil, opaque("%d frames, more than %d", count, maxFrames)
	}
	width := int64(8)
	if flags&seekChecksums != 0 {
		width = 12
	}
	n := skippableHeader + count*width + seekFooter
	if n > src.size {
		return nil, opaque("%d frames in %d bytes", count, src.size)
	}
	p, err := src.read(src.size-n, n)
	if err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(p) != seekMagic || int64(binary.LittleEndian.Uint32(p[4:])) != n-skippableHeader {
		return nil, opaque("no skippable frame of %d bytes", n-skippableHeader)
	}
	frames := make([]Frame, count)
	var sum int64
	for i := range frames {
		e := p[skippableHeader+int64(i)*width:]
		f := Frame{Size: int64(binary.LittleEndian.Uint32(e)), Plain: int64(binary.LittleEndian.Uint32(e[4:]))}
		frames[i] = f
		sum += f.Size
	}
	if sum != src.size-n {
		return nil, opaque("frames of %d bytes, where %d are", sum, src.size-n)
	}
	return frames, nil
}
