package hydrate

import (
	"encoding/binary"
	"math"
	"testing"
)

// prefix returns the first bytes of a safetensors file with a header of n bytes that begins with c.
func prefix(n uint64, c byte) (p [lengthSize + 1]byte) {
	binary.LittleEndian.PutUint64(p[:], n)
	p[lengthSize] = c
	return p
}

func TestHeadOf(t *testing.T) {
	const size = 200_000_000
	zip := [lengthSize + 1]byte{'P', 'K', 3, 4}
	for name, tt := range map[string]struct {
		p        [lengthSize + 1]byte
		size     int64
		from, to int64
	}{
		"safetensors":          {prefix(1000, '{'), size, 0, 1008},
		"the longest":          {prefix(maxHead, '{'), size, 0, maxHead + 8},
		"longer":               {prefix(maxHead+1, '{'), size, 0, 0},
		"the whole file":       {prefix(992, '{'), 1000, 0, 1000},
		"beyond the file":      {prefix(993, '{'), 1000, 0, 0},
		"of no bytes":          {prefix(0, '{'), size, 0, 8},
		"negative":             {prefix(math.MaxUint64, '{'), size, 0, 0},
		"not JSON":             {prefix(1000, '['), size, 0, 0},
		"ZIP":                  {zip, size, size - zipTail, size},
		"a small ZIP":          {zip, 1000, 0, 1000},
		"GGUF":                 {[lengthSize + 1]byte{'G', 'G', 'U', 'F', 3}, size, 0, 0},
		"a file of 9 bytes":    {prefix(1, '{'), 9, 0, 9},
		"an unknown one":       {[lengthSize + 1]byte{'x'}, size, 0, 0},
		"a length, and no end": {prefix(math.MaxInt64, '{'), math.MaxInt64, 0, 0},
	} {
		if from, to := headOf(tt.p, tt.size); from != tt.from || to != tt.to {
			t.Errorf("%s: got %d to %d, want %d to %d", name, from, to, tt.from, tt.to)
		}
	}
}

// FuzzHeadOf: whatever a file begins with, its head is a part of it, and limited.
func FuzzHeadOf(f *testing.F) {
	f.Add([]byte("PK\x03\x04....."), int64(10))
	for _, n := range []uint64{0, 1, 1000, maxHead, maxHead + 1, math.MaxInt64, math.MaxUint64} {
		p := prefix(n, '{')
		f.Add(p[:], int64(2000))
	}
	f.Fuzz(func(t *testing.T, p []byte, size int64) {
		if len(p) <= lengthSize || size <= lengthSize {
			return
		}
		from, to := headOf([lengthSize + 1]byte(p), size)
		if from < 0 || from > to || to > size || to-from > maxHead+lengthSize {
			t.Errorf("%q of %d bytes: %d to %d", p, size, from, to)
		}
	})
}
