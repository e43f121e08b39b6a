package chunked

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/containerd/errdefs"
)

// The seek table is a skippable frame at the end of a zstd file:
//
//	magic, size of the rest │ for each frame: size, uncompressed size, checksum or not │ footer
//
// The footer is the number of frames, a byte that indicates checksums, and a magic number. All
// numbers are 32 bits, little-endian. The table is not read here: it has no digest, and the file
// table has digests too.
const (
	seekMagic       = 0x184D2A5E
	seekFooterMagic = 0x8F92EAB1
	seekFooter      = 9 // bytes

	// maxFrames limits the frames: 4 TiB in frames of a chunk.
	maxFrames = 1 << 20
)

// SeekTable returns the seek table of a file with one frame for each chunk, without checksums: those
// of the format have only 32 bits, and the file table has digests. It returns
// errdefs.ErrInvalidArgument for frames that the format cannot represent.
func SeekTable(frames []Chunk) ([]byte, error) {
	size := 8*len(frames) + seekFooter
	if len(frames) > maxFrames {
		return nil, fmt.Errorf("seek table of %d frames, more than %d: %w", len(frames), maxFrames, errdefs.ErrInvalidArgument)
	}
	b := binary.LittleEndian.AppendUint32(nil, seekMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	for _, f := range frames {
		if f.Len < 0 || f.Len > math.MaxUint32 || f.Size < 0 || f.Size > math.MaxUint32 {
			return nil, fmt.Errorf("seek table: frame of %d bytes, %d uncompressed: %w", f.Len, f.Size, errdefs.ErrInvalidArgument)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(f.Len))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.Size))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(frames)))
	b = append(b, 0)
	return binary.LittleEndian.AppendUint32(b, seekFooterMagic), nil
}
