package hydrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// Limits of a compressed archive. Weights do not compress by a factor of 100. Blocks of zeros take no disk space, only
// time; gzip compresses them by at most 1032, zstd by 30,000.
const (
	unpackBase  = 1 << 30 // bytes that any archive may have unpacked, without blocks of zeros
	unpackRatio = 100     // bytes out for each byte in, beyond unpackBase

	zerosBase  = 2 << 30 // bytes that any archive may have unpacked
	zerosRatio = 1100    // bytes out for each byte in, beyond zerosBase
)

// holeBlock is the size in bytes of the blocks of a file that are left out if they are zeros. It is a multiple of the
// block size of file systems, and divides the buffer of copyHoles.
const holeBlock = 64 << 10

// How often the space for unpacked archives is checked, in bytes of one archive and of all of them. The quota costs
// more: the sizes of all objects.
const (
	roomEvery = 64 << 20
	fitsEvery = 256 << 20
)

// bombGuard limits the size of an unpacked archive.
type bombGuard struct {
	r       io.Reader
	objects Objects
	size    int64         // of the archive, in bytes
	all     *atomic.Int64 // bytes that were read
	sum     *atomic.Int64 // of what was read of all archives
	aborted *atomic.Bool  // ends it: a few bytes of zstd can be gigabytes of zeros

	holes int64 // of all, bytes that take no disk space
}

func (b *bombGuard) Read(p []byte) (int, error) {
	if b.aborted.Load() {
		return 0, context.Canceled
	}
	n, err := b.r.Read(p)
	all, sum := b.all.Add(int64(n)), b.sum.Add(int64(n))
	switch {
	case all-b.holes > unpackBase+unpackRatio*b.size:
		return n, bombError(unpackBase, unpackRatio, ", without zeros")
	case all > zerosBase+zerosRatio*b.size:
		return n, bombError(zerosBase, zerosRatio, "")
	}
	var full error
	if (all-int64(n))/roomEvery != all/roomEvery {
		full = b.objects.Room(b.holes)
	}
	if full == nil && (sum-int64(n))/fitsEvery != sum/fitsEvery {
		full = b.objects.Fits(b.holes)
	}
	if full != nil {
		return n, fmt.Errorf("the unpacked archive does not fit: %w", full)
	}
	if err != nil && err != io.EOF && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return n, err
}

func bombError(base, ratio int64, what string) error {
	return fmt.Errorf("it has more than %d GiB and %d times its size%s, the limit against decompression bombs; layers without compression have none: %w",
		base>>30, ratio, what, errdefs.ErrInvalidArgument)
}

var zeros [holeBlock]byte

// copyHoles copies r to an empty file and to hash. It leaves holes in the place of blocks of zeros, and adds their size
// to holes at once, because r can be limited by them. The holes do not depend on how r divides its bytes.
func copyHoles(f *os.File, hash verify.Hash, r io.Reader, buf []byte, holes *int64) (err error) {
	var off int64
	for err == nil {
		n := 0
		for n < len(buf) && err == nil {
			var more int
			more, err = r.Read(buf[n:])
			n += more
		}
		hash.Write(buf[:n])
		for block := range slices.Chunk(buf[:n], holeBlock) {
			if bytes.Equal(block, zeros[:len(block)]) {
				*holes += int64(len(block))
			} else if _, err := f.WriteAt(block, off); err != nil {
				return err
			}
			off += int64(len(block))
		}
	}
	if err != io.EOF {
		return err
	}
	return f.Truncate(off)
}
