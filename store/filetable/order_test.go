package filetable

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestOrderAdds: ranges that continue one of the last are merged with it, within limits.
func TestOrderAdds(t *testing.T) {
	var o Order
	for _, r := range []Range{
		{"a", 0, 10}, {"a", 10, 5}, // continues the last
		{"b", 100, 10}, {"a", 15, 5}, {"b", 110, 10}, // two readers
		{"a", 40, 10}, {"a", 30, 10}, // backwards is not merged
		{"c", 0, maxMerged}, {"c", maxMerged, 1}, // the last one may become large
		{"d", 0, 1}, {"c", maxMerged + 1, 1}, // but not another one
	} {
		if !o.Add(r) {
			t.Fatalf("no room for %v", r)
		}
	}
	want := []Range{{"a", 0, 20}, {"b", 100, 20}, {"a", 40, 10}, {"a", 30, 10}, {"c", 0, maxMerged + 1}, {"d", 0, 1}, {"c", maxMerged + 1, 1}}
	if diff := cmp.Diff(want, o.Ranges); diff != "" {
		t.Error(diff)
	}
	for i := range 2 * MaxOrderRanges {
		o.Add(Range{"e", int64(2 * i), 1})
	}
	if len(o.Ranges) != MaxOrderRanges {
		t.Errorf("%d ranges", len(o.Ranges))
	}
	for i := range o.Ranges {
		o.Ranges[i].Path = strings.Repeat("p", 500)
	}
	p, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if o, err := ParseOrder(p); err != nil || len(o.Ranges) == 0 {
		t.Errorf("an order with long paths: %d ranges, %v", len(o.Ranges), err)
	}
}

// TestOrderWithin: what the files do not have is left out.
func TestOrderWithin(t *testing.T) {
	files := []File{{Path: "a", Type: TypeReg, Size: 100}, {Path: "dir", Type: TypeDir}}
	o := Order{Ranges: []Range{{"b", 0, 1}, {"a", 90, 20}, {"dir", 0, 1}, {"a", -1, 1}, {"a", 100, 1}, {"a", 1 << 62, 1}, {"a", 0, 1}}}
	if diff := cmp.Diff([]Range{{"a", 90, 10}, {"a", 0, 1}}, o.Within(files).Ranges); diff != "" {
		t.Error(diff)
	}
}

// TestOrderNamesBytesOnce: what a range names again is cut off it, wherever that is.
func TestOrderNamesBytesOnce(t *testing.T) {
	files := []File{{Path: "a", Type: TypeReg, Size: 100}, {Path: "b", Type: TypeReg, Size: 100}}
	o := Order{Ranges: []Range{{"a", 20, 10}, {"a", 60, 10}, {"b", 0, 100}, {"a", 65, 10}, {"a", 20, 10}, {"a", 10, 70}, {"a", 0, 100}, {"a", 0, 100}}}
	want := []Range{{"a", 20, 10}, {"a", 60, 10}, {"b", 0, 100}, {"a", 70, 5}, {"a", 10, 10}, {"a", 30, 30}, {"a", 75, 5}, {"a", 0, 10}, {"a", 80, 20}}
	if diff := cmp.Diff(want, o.Within(files).Ranges); diff != "" {
		t.Error(diff)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var o Order
		for range rnd.IntN(30) {
			o.Ranges = append(o.Ranges, Range{[]string{"a", "b", "c"}[rnd.IntN(3)], rnd.Int64N(120), 1 + rnd.Int64N(60)})
		}
		if diff := cmp.Diff(turns(o, files), turns(o.Within(files), files)); diff != "" {
			t.Fatalf("%v: %s", o.Ranges, diff)
		}
		total := 0
		for _, r := range o.Within(files).Ranges {
			total += int(r.Size)
		}
		if n := len(turns(o, files)); n != total {
			t.Fatalf("%v: %d bytes are named, of %d", o.Ranges, total, n)
		}
	}
}

// turns returns the bytes of files that an order names, as "path offset", in the order in which it first names them.
func turns(o Order, files []File) (out []string) {
	seen := map[string]bool{}
	for _, r := range o.Ranges {
		for at := r.Offset; at < r.End(); at++ {
			b := fmt.Sprint(r.Path, " ", at)
			if !seen[b] && slices.ContainsFunc(files, func(f File) bool { return f.Path == r.Path && at < f.Size }) {
				seen[b] = true
				out = append(out, b)
			}
		}
	}
	return out
}

func TestParseOrderRefuses(t *testing.T) {
	const form = `{"version":1,"ranges":[{"path":"a","offset":%d,"size":%d}]}`
	for _, text := range []string{
		"", "[]", `{"version":2}`, fmt.Sprintf(form, -1, 1), fmt.Sprintf(form, 0, 0), fmt.Sprintf(form, 1<<62, int64(1<<63-1)),
		`{"version":1,"ranges":[` + strings.Repeat(`{"path":"a","size":1},`, MaxOrderRanges) + `{"path":"a","size":1}]}`,
		strings.Repeat(" ", MaxOrderSize+1),
	} {
		if _, err := ParseOrder([]byte(text)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// FuzzParseOrder: whatever is accepted is within the limits, and comes back from its encoding.
func FuzzParseOrder(f *testing.F) {
	f.Add([]byte(`{"version":1,"ranges":[{"path":"a","offset":0,"size":1},{"path":"b/c","offset":4096,"size":4194304}]}`))
	f.Add([]byte(`{"version":1,"ranges":null,"more":{}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		o, err := ParseOrder(p)
		if err != nil {
			return
		}
		if len(o.Ranges) > MaxOrderRanges {
			t.Fatalf("%d ranges", len(o.Ranges))
		}
		q, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseOrder(q)
		if err != nil || len(again.Ranges) > len(o.Ranges) {
			t.Fatalf("%d ranges of %d come back, %v", len(again.Ranges), len(o.Ranges), err)
		}
		for i, r := range again.Ranges {
			if r != o.Ranges[i] || r.Offset < 0 || r.Size <= 0 || r.End() <= 0 {
				t.Fatalf("range %v of %v", r, o.Ranges[i])
			}
		}
		named := int64(0)
		for _, r := range o.Within([]File{{Path: "a", Type: TypeReg, Size: 10}}).Ranges {
			named += r.Size
		}
		if named > 10 {
			t.Fatalf("%d bytes of 10 are named", named)
		}
	})
}
