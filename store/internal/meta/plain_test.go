package meta

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// FuzzPlain checks that the decoder without encoding/json agrees with it, and reads everything that put
// writes.
func FuzzPlain(f *testing.F) {
	used := time.Date(2026, 11, 22, 1, 2, 3, 456789, time.UTC)
	for _, v := range []any{
		Object{Size: 0, Used: used},
		Object{Size: 1 << 40, Used: used, Private: []string{"host/name"}},
		Object{Size: 7, Used: used, Private: []string{"host/name", "other:5000/na-me_2"}},
		Table{Objects: []digest.Digest{number(1)}},
		Table{Objects: []digest.Digest{number(1), number(2)}, Logical: 12, Complete: true},
		Table{Objects: []digest.Digest{number(3)}, Partly: true, Broken: true},
	} {
		p, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		_, object := plainSize(p)
		if _, _, table := plainTable(p); !object && !table {
			f.Errorf("%s is not read", p)
		}
		f.Add(p)
	}
	for _, p := range []string{
		``, `{"size":-1,"used":"2026-11-22T01:02:03Z"}`, `{"size":01,"used":"2026-11-22T01:02:03Z"}`,
		`{"size":1,"used":"2026-13-22T01:02:03Z"}`, `{"size":1,"used":"2026-02-30T01:02:03Z"}`,
		`{"size":1,"used":"2026-01-31T01:02:03.5Z"}`, `{"size":1,"used":"2026-01-01T24:02:03.Z"}`, `{"size":1,"used":"2026-01-01T23:02:03.Z"}`, `{"size":1,"used":"2026-11-22T01:02:03Z","private":["\u0041"]}`,
		`{"size":1,"used":"2026-11-22T01:02:03Z","private":[],"size":2}`,
		`{"objects":null,"logical":0,"complete":false}`,
		`{"objects":["sha256:x"],"logical":0,"complete":false,"objects":null}`,
	} {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if size, ok := plainSize(p); ok {
			if o, err := parse[Object](bucketObjects, nil, p); err != nil || o.Size != size {
				t.Errorf("size %d, want %d, %v", size, o.Size, err)
			}
		}
		if got, objects, ok := plainTable(p); ok {
			want, err := parse[Table](bucketTables, nil, p)
			if err != nil {
				t.Fatal(err)
			}
			n := newNeeding("", want)
			if diff := cmp.Diff(n.Table, got); diff != "" {
				t.Errorf("(-JSON +plain):\n%s", diff)
			}
			if diff := cmp.Diff(n.objects, objects); diff != "" {
				t.Errorf("objects (-JSON +plain):\n%s", diff)
			}
		}
	})
}
