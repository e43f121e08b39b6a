package filetable

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"github.com/containerd/errdefs"
)

// OrderVersion is the version of an Order.
const OrderVersion = 1

// Limits of an Order: strangers write them.
const (
	MaxOrderSize   = 768 << 10 // bytes of the encoded order: 96 for each range
	MaxOrderRanges = 8192      // tensors of models are some thousands
)

// An Order is the order in which the parts of a model are first read. It is a hint: a wrong one makes reads slower,
// and has no other effect.
type Order struct {
	Version int     `json:"version"`
	Ranges  []Range `json:"ranges"`
}

// A Range is a part of a file.
type Range struct {
	Path   string `json:"path"`   // of the file, as in its table
	Offset int64  `json:"offset"` // bytes
	Size   int64  `json:"size"`   // bytes
}

// End returns the offset of the first byte after the range.
func (r Range) End() int64 { return r.Offset + r.Size }

// ParseOrder decodes an order. It returns errdefs.ErrInvalidArgument if it is too large, of another version, or has
// ranges that no file can have.
func ParseOrder(p []byte) (Order, error) {
	if len(p) > MaxOrderSize {
		return Order{}, badOrder("more than %d bytes", MaxOrderSize)
	}
	var o Order
	if err := json.Unmarshal(p, &o); err != nil {
		return Order{}, badOrder("%w", err)
	}
	return o, o.Check()
}

func badOrder(format string, args ...any) error {
	return fmt.Errorf("order of a model: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// Check returns errdefs.ErrInvalidArgument for an order that ParseOrder does not return.
func (o Order) Check() error {
	switch {
	case o.Version != OrderVersion:
		return badOrder("version %d, want %d", o.Version, OrderVersion)
	case len(o.Ranges) > MaxOrderRanges:
		return badOrder("%d ranges, more than %d", len(o.Ranges), MaxOrderRanges)
	}
	for i, r := range o.Ranges {
		if r.Offset < 0 || r.Size <= 0 || r.End() < r.Offset {
			return badOrder("range %d: %d bytes at %d", i, r.Size, r.Offset)
		}
	}
	return nil
}

// Encode returns the encoded order, as far as ParseOrder accepts it.
func (o Order) Encode() ([]byte, error) {
	o.Version = OrderVersion
	if o.Ranges == nil {
		o.Ranges = []Range{}
	}
	p, err := json.Marshal(o)
	if n := len(o.Ranges); err == nil && len(p) > MaxOrderSize { // long paths
		return Order{Ranges: o.Ranges[:n/2]}.Encode()
	}
	return p, err
}

// Within returns the order without what the files do not have, and without what it has named before: strangers write
// orders, and each range costs as much as it has chunks. The result names no byte twice.
func (o Order) Within(files []File) Order {
	left := map[string][]Range{} // what is not named yet, by path
	for _, r := range o.Ranges {
		left[r.Path] = nil
	}
	for _, f := range files {
		if _, named := left[f.Path]; named && f.Type == TypeReg && f.Size > 0 {
			left[f.Path] = []Range{{Path: f.Path, Size: f.Size}}
		}
	}
	out := Order{Version: OrderVersion}
	for _, r := range o.Ranges {
		gaps := left[r.Path]
		from := sort.Search(len(gaps), func(i int) bool { return gaps[i].End() > r.Offset })
		to := sort.Search(len(gaps), func(i int) bool { return gaps[i].Offset >= r.End() })
		if from >= to {
			continue
		}
		var rest []Range
		for _, gap := range gaps[from:to] {
			named := Range{r.Path, max(r.Offset, gap.Offset), 0}
			named.Size = min(r.End(), gap.End()) - named.Offset
			if len(out.Ranges) == MaxOrderRanges {
				return out
			}
			out.Ranges = append(out.Ranges, named)
			for _, side := range []Range{{r.Path, gap.Offset, named.Offset - gap.Offset}, {r.Path, named.End(), gap.End() - named.End()}} {
				if side.Size > 0 {
					rest = append(rest, side)
				}
			}
		}
		left[r.Path] = slices.Replace(gaps, from, to, rest...)
	}
	return out
}

// ByPath returns the ranges of each file.
func (o Order) ByPath() map[string][]Range {
	of := map[string][]Range{}
	for _, r := range o.Ranges {
		of[r.Path] = append(of[r.Path], r)
	}
	return of
}

// A range is added to one of the last orderStreams ranges if it continues that: several readers alternate. Only the
// last one becomes larger than maxMerged, so that the others keep their turns.
const (
	orderStreams = 8
	maxMerged    = 32 << 20 // 32 MiB: 4,480 ranges for 140 GiB
)

// Add adds a range at the end, or to one that it continues. It returns false if there is no room.
func (o *Order) Add(r Range) bool {
	last := len(o.Ranges) - 1
	for i := last; i >= max(0, last+1-orderStreams); i-- {
		if to := &o.Ranges[i]; to.Path == r.Path && to.End() == r.Offset && (i == last || to.Size+r.Size <= maxMerged) {
			to.Size += r.Size
			return true
		}
	}
	if len(o.Ranges) >= MaxOrderRanges {
		return false
	}
	o.Ranges = append(o.Ranges, r)
	return true
}
