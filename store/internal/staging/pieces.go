package staging

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Piece defines where the bytes [Off, Off+Size) of a blob are staged: in a file, at an offset.
// The file is in the directory of the partial or, if its name has a slash, below Top.
type Piece struct {
	Off, Size int64
	File      string
	At        int64
}

// RawPieces stages a blob as one file.
func RawPieces(size int64) []Piece { return []Piece{{Size: size, File: "data"}} }

// TarPieces stages each member of an uncompressed tar as one file, and the bytes between them
// (headers and padding) in a sparse file. members may overlap only if they are equal.
func TarPieces(members []filetable.Member, size int64) ([]Piece, error) {
	ranges := make([]filetable.Member, 0, len(members))
	for _, m := range members {
		if m.Type == filetable.TypeReg && m.Size > 0 {
			ranges = append(ranges, m)
		}
	}
	slices.SortFunc(ranges, func(a, b filetable.Member) int { return cmp.Compare(a.Offset, b.Offset) })
	ranges = slices.CompactFunc(ranges, func(a, b filetable.Member) bool { return a.Offset == b.Offset && a.Size == b.Size })
	var pieces []Piece
	var at int64
	for _, m := range ranges {
		if m.Offset < at || m.Size > size-m.Offset {
			return nil, fmt.Errorf("tar member %q: its range overlaps another or the end: %w", m.Path, errdefs.ErrInvalidArgument)
		}
		pieces = append(pieces, Piece{Off: m.Offset, Size: m.Size, File: MemberFile(m.Offset)})
		at = m.Offset + m.Size
	}
	return FillGaps(pieces, size), nil
}

// gaps is the file of the bytes that belong to no other file.
const gaps = "gaps"

// InGap reports whether a piece belongs to no file.
func (p Piece) InGap() bool { return p.File == gaps }

// FillGaps sorts the pieces of a blob of size bytes, and adds pieces for the gaps.
func FillGaps(pieces []Piece, size int64) []Piece {
	slices.SortFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.Off, b.Off) })
	var out []Piece
	var at int64
	gap := func(to int64) {
		if to > at {
			out = append(out, Piece{Off: at, Size: to - at, File: gaps, At: at})
		}
	}
	for _, pc := range pieces {
		gap(pc.Off)
		out = append(out, pc)
		at = pc.Off + pc.Size
	}
	gap(size)
	return out
}

// MemberFile returns the name of the staged file of a tar member at an offset.
func MemberFile(off int64) string { return fmt.Sprintf("member-%d", off) }

// LayoutOf identifies a layout: equal results mean equal bytes at equal places.
func LayoutOf(pieces []Piece, grid []int64) string {
	h := digest.SHA256.Hash()
	for _, at := range grid {
		fmt.Fprintln(h, at)
	}
	for _, p := range pieces {
		fmt.Fprintf(h, "%d %d %s %d\n", p.Off, p.Size, p.File, p.At)
	}
	return digest.NewDigest(digest.SHA256, h).String()
}
