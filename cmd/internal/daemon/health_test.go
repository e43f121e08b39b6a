package daemon

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// A model is read early by tables of hash states if each large file has one, or files without may be waited for.
func TestEarlyByTables(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("model")
	var chains []store.SignedChain
	for i, path := range []string{"a.bin", "b.bin", "c.bin"} {
		p := storetest.Random(uint64(i), verify.Window+1)
		b.Raw(path, p, 0o644)
		blob := filetable.Blob{Digest: digest.FromBytes(p), Size: int64(len(p))}
		states, err := verify.ReadChain(t.Context(), bytes.NewReader(p), blob.Digest, blob.Size, func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		chains = append(chains, store.SignedChain{Blob: blob, States: states, Signer: "team"})
	}
	im := store.Image{Table: b.Put(t, s)}
	say := func(mode, tables string, keys ...string) (how, whyNot string) {
		t.Helper()
		d := facts{&Daemon{store: s, config: &config.Config{Lazy: config.Lazy{Mode: mode, Tables: tables, TableKeys: keys}}}}
		how, whyNot, err := d.Early(t.Context(), im)
		if err != nil {
			t.Fatal(err)
		}
		return how, whyNot
	}
	for want, l := range map[string]config.Lazy{
		"its files have no chunk digests, which \"ballast convert\" writes, and lazy.tables names no": {},
		"its files have no chunk digests, and lazy.table_keys has no key":                             {Tables: "r.example/t"},
		"its files have no chunk digests, and had no table of hash states in r.example/t":             {Tables: "r.example/t", TableKeys: []string{"k"}},
	} {
		if how, whyNot := say(config.ModeAuto, l.Tables, l.TableKeys...); how != "" || !strings.HasPrefix(whyNot, want) {
			t.Errorf("%q, %q instead of %q", how, whyNot, want)
		}
	}
	for n, want := range []string{`"b.bin" and another file have no`, `"c.bin" has no`, ""} {
		if err := s.PutChains(chains[n]); err != nil {
			t.Fatal(err)
		}
		if how, whyNot := say(config.ModeAuto, "r.example/t", "k"); (how != "") != (want == "") || !strings.HasPrefix(whyNot, want) {
			t.Errorf("%d tables: %q, %q", n+1, how, whyNot)
		}
		if how, whyNot := say(config.ModeLazy, "r.example/t", "k"); how != "by tables of hash states of r.example/t (team)" || whyNot != "" {
			t.Errorf("%d tables in mode lazy: %q, %q", n+1, how, whyNot)
		}
	}
}
