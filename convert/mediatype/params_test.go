package mediatype

import (
	"maps"
	"mime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestParams(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		want map[string]string
	}{
		{"a/b", map[string]string{}},
		{"a/b;", map[string]string{}},
		{"a/b ; name=x ;; dtype = F32 ; shape=1,2,3", map[string]string{"name": "x", "dtype": "F32", "shape": "1,2,3"}},
		{`a/b; NAME="x;y=\"z\"\\"; shape=[1, 2]`, map[string]string{"name": `x;y="z"\`, "shape": "[1, 2]"}},
		{"a/b; name*=UTF-8'en'%e2%82%AC%2F..", map[string]string{"name": "€/.."}},
		{"a/b; name=", map[string]string{"name": ""}},
		{"a/b; name=a=b", map[string]string{"name": "a=b"}},
	} {
		got, err := Params(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, diff)
		}
	}
}

// FuzzParams compares with package mime, which is stricter: what both accept must be equal.
func FuzzParams(f *testing.F) {
	f.Add("; name=input; dtype=F32; shape=1,2,3")
	f.Add(`; dtype=BF16; name="a b"; shape="[1,2,3]"`)
	f.Add("; name*=utf-8''..%2f..%2fx")
	f.Add("; [name=x]")
	f.Add(`; name="../../x"; shape=[1e9,1e9`)
	f.Add("; shape=[18446744073709551615,18446744073709551616]")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Params("a/b" + s)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		_, want, err := mime.ParseMediaType("a/b" + s)
		if err != nil || strings.ContainsAny(s, "*\\\"") { // continuations, and what mime tolerates in quotes
			return
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if got[k] != want[k] {
				t.Fatalf("%s: got %q, mime has %q", k, got[k], want[k])
			}
		}
	})
}

// FuzzParamsRoundTrip reads what mime writes.
func FuzzParamsRoundTrip(f *testing.F) {
	f.Add("model.layers.0.weight", "[1,2,3]")
	f.Add("ünï \"quoted\" \\", "")
	f.Fuzz(func(t *testing.T, name, shape string) {
		s := mime.FormatMediaType("a/b", map[string]string{"name": name, "shape": shape})
		if _, _, err := mime.ParseMediaType(s); s == "" || err != nil || len(s) > maxParams {
			return
		}
		got, err := Params(s)
		if err != nil {
			if !strings.Contains(err.Error(), "UTF-8") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if got["name"] != name || got["shape"] != shape {
			t.Fatalf("%q: got %q", s, got)
		}
	})
}
