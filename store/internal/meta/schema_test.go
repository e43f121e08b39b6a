package meta

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// drawing reads the schema from the package doc: bucket → fields of its values.
func drawing(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, s, _ := strings.Cut(string(doc), "// # Schema")
	s, _, _ = strings.Cut(s, "// A recipe is")
	out := map[string][]string{}
	bucket := ""
	for line := range strings.Lines(s) {
		line, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t")
		if !ok {
			continue
		}
		if !strings.HasPrefix(line, " ") {
			bucket = line
			out[bucket] = nil
			continue
		}
		_, fields, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields = strings.TrimPrefix(strings.TrimSpace(fields), "list of: ")
		out[bucket] = append(out[bucket], strings.Fields(fields)...)
	}
	for _, f := range out {
		slices.Sort(f)
	}
	return out
}

func TestSchema(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	now := time.Now()
	member := filetable.Member{Digest: digest.FromString("x"), Path: "p", Type: filetable.TypeReg, Mode: 1, ModTime: now, Size: 1, Offset: 1, Target: "t"}
	values := map[string]any{
		"contents":  member,
		"assembled": assembled{},
		"ways":      way{Wrong: 1},
		"verdicts":  Verdict{},
		"orders":    Order{},
		"images":    Image{PrivateNames: []string{"h/r"}, Imported: []string{"h/r:t"}, Read: map[string]time.Time{"h/r": now}},
		"refs":      Ref{Expires: now, Sources: []string{"h/r"}},
	}
	fieldsOf := func(v any) []string {
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(p, &fields); err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(fields))
	}
	scrub := fieldsOf(Scrub{Ended: now, Whole: now, Last: member.Digest})
	got := map[string][]string{"meta": slices.Sorted(slices.Values(append(scrub, schemaVersion, "time")))}
	err = db.bolt.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, _ *bbolt.Bucket) error {
			if v, ok := values[string(name)]; ok {
				got[string(name)] = fieldsOf(v)
			} else if string(name) != "meta" {
				got[string(name)] = nil
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, drawing(t)); diff != "" {
		t.Errorf("store and drawing in doc.go differ (-store +drawing):\n%s", diff)
	}
	err = db.view(func(tx *txn) error {
		v, err := version(tx.Bucket(bucketMeta).Get([]byte(keyVersion)))
		if v != schemaVersion {
			t.Errorf("version %q, want %q", v, schemaVersion)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The version of the schema can be read while the database is open, and is the one that it has then. A
// database of another version is refused with both versions.
func TestSchemaIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	if v, err := Schema(path); !errdefs.IsNotFound(err) {
		t.Errorf("no database: %q, %v", v, err)
	}
	for _, before := range []string{"", "1\n", schemaVersion + "\n"} {
		if err := os.RemoveAll(path + schemaSuffix); err != nil {
			t.Fatal(err)
		}
		if before != "" {
			if err := os.WriteFile(path+schemaSuffix, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		db, err := Open(path, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := Schema(path); v != schemaVersion || err != nil {
			t.Errorf("open: %q, %v", v, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	db, err := Open(path, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	err = db.update(func(tx *txn) error { return putVersion(tx, "99") })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, Options{Log: slog.New(slog.DiscardHandler)})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `schema version "99", want "`+schemaVersion+`"`) {
		t.Errorf("another schema: %v", err)
	}
}
