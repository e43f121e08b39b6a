package ollama

import "testing"

func FuzzShape(f *testing.F) {
	for _, s := range []string{"1,2,3", "[1,2,3]", "", "[1e9,1e9", "[18446744073709551615,18446744073709551616]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if shape, err := parseShape(s); err == nil && len(shape) > maxDims {
			t.Fatalf("%d dimensions", len(shape))
		}
	})
}
