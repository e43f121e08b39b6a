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
			c.keep(d, &filetable.Table{Version: i}, size)
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
