package contentrange_test

import (
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/convert/contentrange"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		header string
		want   contentrange.Range
		ok     bool
	}{
		{"bytes 0-9/100", contentrange.Range{First: 0, Last: 9, Size: 100}, true},
		{"bytes 99-99/100", contentrange.Range{First: 99, Last: 99, Size: 100}, true},
		{"bytes 5-9/*", contentrange.Range{First: 5, Last: 9, Size: -1}, true},
		{header: "bytes */100"},
		{header: "bytes 5-4/100"},
		{header: "bytes 0-100/100"},
		{header: "bytes 0-0/0"},
		{header: "bytes -1-5/9"},
		{header: "bytes +0-5/9"},
		{header: "bytes 0-9"},
		{header: "bytes 0-9/"},
		{header: "bytes=0-9/100"},
		{header: "items 0-9/100"},
		{header: "bytes 0-99999999999999999999/1"},
		{header: ""},
	} {
		if got, ok := contentrange.Parse(tt.header); got != tt.want || ok != tt.ok {
			t.Errorf("%q: got %+v, %v; want %+v, %v", tt.header, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"bytes 0-9/100", "bytes 0-9/*", "bytes */100", "bytes -1-5/9", "", "bytes 5-4/3", "bytes 5-4/9", "bytes 0-9/5", "bytes 0-99999999999999999999/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, ok := contentrange.Parse(s)
		if !ok {
			return
		}
		if r.First < 0 || r.Last < r.First || r.Size < -1 || r.Size >= 0 && r.Last >= r.Size {
			t.Fatalf("Parse(%q) = %+v", s, r)
		}
		size := "*"
		if r.Size >= 0 {
			size = fmt.Sprint(r.Size)
		}
		if again, ok := contentrange.Parse(fmt.Sprintf("bytes %d-%d/%s", r.First, r.Last, size)); !ok || again != r {
			t.Fatalf("Parse(%q) = %+v, written again %+v", s, r, again)
		}
	})
}
