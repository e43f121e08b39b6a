package store

import (
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// TestDecoded checks the limit of decoded tables, and that the last one is present.
func TestDecoded(t *testing.T) {
	var c decoded
	for i, size := range []int{1 << 10, maxDecoded / 2, maxDecoded / 3, 3 * maxDecoded, 1 << 10, maxDecoded, maxDecoded / 2, maxDecoded / 2} {
		d := digest.FromString(fmt.Sprint(i))
		for range 2 { // two concurrent callers may both decode it
			c.keep(d, decodedTable{&filetable.Table{Version: i}, nil, size})
		}
		if got := c.table(d); got == nil || got.Version != i {
			t.Errorf("table %d is not there", i)
		}
		sum := 0
		for _, k := range c.tables {
			sum += k.bytes
		}
		if sum != c.bytes || sum > max(size, maxDecoded) {
			t.Errorf("after table %d of %d: %d bytes, counted as %d", i, size, sum, c.bytes)
		}
	}
	if len(c.tables) != 2 {
		t.Errorf("got %d tables, want the last 2", len(c.tables))
	}
}

// TestDecodedOnce checks that a table is decoded once, also a wrong one.
func TestDecodedOnce(t *testing.T) {
	good := filetable.Table{Version: filetable.Version, Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1}}
	right, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.TempDir(), Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.PutTable(right)
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.Table(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutTable(right); err != nil {
		t.Fatal(err)
	}
	if two, err := s.Table(d); two != one || err != nil {
		t.Errorf("decoded again, %v", err)
	}
	var errs []error
	for range 2 {
		_, err := s.PutTable([]byte("no table"))
		errs = append(errs, err)
	}
	if errs[0] == nil || errs[0] != errs[1] {
		t.Errorf("refused with %v, and then with another error: %v", errs[0], errs[1])
	}
	if s.has(digest.FromString("no table")) {
		t.Error("what was refused is an object")
	}
	for i := range 10_000 { // refused tables are limited too
		_, _ = s.decoded.decode(digest.FromString(fmt.Sprint("wrong", i)), nil)
	}
	if n := len(s.decoded.tables); n > maxDecoded/refusedBytes {
		t.Errorf("%d tables are kept", n)
	}
}
