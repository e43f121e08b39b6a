package convert_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzObject compares the values of an Object with those of encoding/json, for a document and for the same
// document encoded again.
func FuzzObject(f *testing.F) {
	for _, s := range []string{
		`{"a":1,"b":[{"c":null}],"d":{"e":"\u0000\ud800"}}`, `{"a":1,"A":2}`, `{"a":1,"a":2}`, `{"a":1}{}`, `[]`, `null`, `{"":{"":{"":-0e1}}}`, "{\"a\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		o, err := convert.ParseObject(p)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(p, &want); err != nil {
			t.Fatalf("encoding/json does not read it: %v", err)
		}
		if len(o.Keys()) != len(want) {
			t.Fatalf("got keys %q, want those of %v", o.Keys(), want)
		}
		for k, v := range want {
			if o.Has(k) != (string(v) != "null") || o.Has(k) && !bytes.Equal(o.Raw(k), v) {
				t.Fatalf("key %q is %q, want %q", k, o.Raw(k), v)
			}
		}
		q, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := convert.ParseObject(q); err != nil {
			t.Fatalf("written again: %v", err)
		}
	})
}

// FuzzConfig writes a config anew and reads it back.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"descriptor":{"createdAt":"2025-01-01T00:00:00Z","authors":["a"]},"modelfs":{"type":"layers","diffIds":["` + digestA + `"]},"config":{"paramSize":"6.7B"}}`,
		`{"config":{"parameterSize":1e300,"capabilities":{"embedding":true,"input_types":["text"]}}}`, `{"config":{"parameterSize":7241732096}}`,
		`{"modelfs":{"diff_ids":null}}`, `{"modelfs":{"diffIds":["sha256:x"]}}`, `{"descriptor":[]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := convert.ParseConfig(p)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		q, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := convert.ParseConfig(q)
		if err != nil {
			t.Fatalf("written as %s: %v", q, err)
		}
		r, err := json.Marshal(again)
		if err != nil || !bytes.Equal(q, r) {
			t.Fatalf("written as (first, second):\n%s", cmp.Diff(string(q), string(r)))
		}
	})
}

// FuzzFileMetadata checks that file metadata from any annotation is valid in a file table.
func FuzzFileMetadata(f *testing.F) {
	for _, s := range []string{
		`{"mode":420,"size":1,"mtime":"2025-01-01T00:00:00Z"}`, `{"mode":-1}`, `{"mode":4294967295}`, `{"typeflag":5}`, `{"mtime":"0000-01-01T00:00:00Z"}`,
		`{"mtime":"9999-12-31T23:59:59-23:59"}`, `{"size":2}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := convert.Descriptor{Descriptor: ocispec.Descriptor{Size: 1, Annotations: map[string]string{mediatype.AnnotationMetadata: s}}}
		m, err := convert.Place{}.WithMetadata(d)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		if m.Mode&^0o777 != 0 || m.ModTime.Location() != time.UTC || !m.ModTime.IsZero() && (m.ModTime.Year() < 1970 || m.ModTime.Year() > 9999) {
			t.Fatalf("got %+v", m)
		}
	})
}
