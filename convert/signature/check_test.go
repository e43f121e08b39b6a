package signature

import (
	"context"
	"crypto"
	"fmt"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// TestLargeTable checks a model of 200 GB of which no byte is on the node, and for which no registry can be
// asked, but its signature.
func TestLargeTable(t *testing.T) {
	if res := large(t)(); len(res) != 1 || res[0].State != Accepted {
		t.Errorf("result %+v", res)
	}
}

// BenchmarkLargeTable is to take less than 50 ms.
func BenchmarkLargeTable(b *testing.B) {
	check := large(b)
	for b.Loop() {
		if res := check(); res[0].State != Accepted {
			b.Fatalf("result %+v", res)
		}
	}
}

// newRule returns a rule for all names with a signer of files, and the key of the signer.
func newRule(t testing.TB) (crypto.Signer, *Rule) {
	t.Helper()
	key, public := converttest.Signer(t, t.TempDir())
	rule, err := NewRule(RuleOptions{Name: "*", Matches: func(string) bool { return true }, Mode: Enforce, Any: []SignerOptions{{Type: TypeOMS, Key: public}}})
	if err != nil {
		t.Fatal(err)
	}
	return key, rule
}

// large makes a model of 200 GB in 4,000 files, and returns what checks it, each time anew.
func large(t testing.TB) func() []Result {
	const files, size = 4000, 50_000_000
	key, rule := newRule(t)
	table := filetable.Table{Version: filetable.Version, Origin: filetable.Origin{Format: "modelpack", Digest: digest.FromString("origin"), Mapping: 1}}
	add := func(name string, d digest.Digest, size int64) {
		table.Blobs = append(table.Blobs, filetable.Blob{Digest: d, Size: size, Layer: len(table.Blobs)})
		table.Files = append(table.Files, filetable.File{Path: name, Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: d, Source: &filetable.Source{Blob: d, Size: size}})
	}
	for i := range files {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i, files)
		add(name, digest.FromString(name), size)
	}
	statement, err := oms.Statement("large", table.Files)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := dsse.Sign(key, statement)
	if err != nil {
		t.Fatal(err)
	}
	add(oms.SignatureFile, digest.FromBytes(bundle), int64(len(bundle)))
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
	if _, err := s.PutBytes(bundle); err != nil {
		t.Fatal(err)
	}
	p, err := table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.PutTable(p)
	if err != nil {
		t.Fatal(err)
	}
	c := &Checker{Rules: []*Rule{rule}, Store: s}
	return func() []Result {
		return c.Check(t.Context(), Subject{Names: []string{"r.example/m"}, Image: store.Image{Table: d}, Again: true})
	}
}

// TestFirstRule: the first rule that matches a name decides, also if it is off.
func TestFirstRule(t *testing.T) {
	rule := func(name string, mode Mode, matches bool) *Rule {
		return &Rule{o: RuleOptions{Name: name, Mode: mode, Matches: func(string) bool { return matches }}}
	}
	for _, tt := range []struct {
		rules []*Rule
		want  string
	}{
		{[]*Rule{rule("other", Enforce, false), rule("off", Off, true), rule("all", Enforce, true)}, ""},
		{[]*Rule{rule("warn", Warn, true), rule("all", Enforce, true)}, "warn"},
		{[]*Rule{rule("all", Enforce, true), rule("off", Off, true)}, "all"},
	} {
		var got string
		for _, r := range (&Checker{Rules: tt.rules}).rules([]string{"r.example/m"}) {
			got += r.o.Name
		}
		if got != tt.want {
			t.Errorf("rules %q apply, want %q", got, tt.want)
		}
	}
}

// TestLicenceOfConfig: images with one table can have several licences.
func TestLicenceOfConfig(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
	table := storetest.NewBuilder("m").Inline("m.gguf", []byte("GGUF"), 0o644).Put(t, s)
	rule, err := NewRule(RuleOptions{Name: "*", Matches: func(string) bool { return true }, Mode: Enforce, Licenses: []string{"MIT"}})
	if err != nil {
		t.Fatal(err)
	}
	c := &Checker{Rules: []*Rule{rule}, Store: s}
	of := func(licence string) Subject {
		config, err := s.PutBytes(fmt.Appendf(nil, `{"descriptor":{"licenses":[%q]},"config":{},"modelfs":{"type":"layers","diffIds":[]}}`, licence))
		if err != nil {
			t.Fatal(err)
		}
		return Subject{Names: []string{"r.example/m"}, Image: store.Image{Table: table, Config: config}}
	}
	for _, tt := range []struct {
		licence string
		want    State
	}{{"GPL-3.0", Refused}, {"mit", Accepted}, {"GPL-3.0", Refused}, {"mit", Accepted}} {
		if res := c.Check(t.Context(), of(tt.licence)); len(res) != 1 || res[0].State != tt.want {
			t.Errorf("%s: %+v, want %s", tt.licence, res, tt.want)
		}
	}
	for i := range maxChecks { // no registry is asked, so that none of the running checks is waited for
		sl, err := c.slots.take(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		defer sl.done()
		c.slots.answered(fmt.Sprint(i), true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	again := of("mit")
	again.Again = true
	if res := c.Check(ctx, again); len(res) != 1 || res[0].State != Accepted {
		t.Errorf("while others are checked: %+v", res)
	}
	for licence, want := range map[string]int{"GPL-3.0": 0, "mit": 1} {
		if known, err := c.Known(of(licence)); len(known) != want || err != nil {
			t.Errorf("%s: known is %+v, %v", licence, known, err)
		}
	}
}

// TestSignatureOfOthers: a model whose table names the digest of a private signature has that signature only by a name
// that has provided it.
func TestSignatureOfOthers(t *testing.T) {
	key, rule := newRule(t)
	weights := storetest.Random(1, 1000)
	statement, err := oms.Statement("m", []filetable.File{{Path: "w", Type: filetable.TypeReg, Digest: digest.FromBytes(weights)}})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := dsse.Sign(key, statement)
	if err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
	d := storetest.NewBuilder("m").Raw("w", weights, 0o644).Raw(oms.SignatureFile, bundle, 0o644).Put(t, s)
	owner := storetest.FromRepository("r.example/private", storetest.Private{Fetcher: storetest.NewFetcher(weights, bundle)})
	if err := s.Hydrate(t.Context(), d, store.HydrateOptions{Sources: owner}); err != nil {
		t.Fatal(err)
	}
	c := &Checker{Rules: []*Rule{rule}, Store: s}
	for name, want := range map[string]State{"r.example/private": Accepted, "r.example/thief": Pending} {
		res := c.Check(t.Context(), Subject{Names: []string{name}, Image: store.Image{Table: d}, Again: true})
		if len(res) != 1 || res[0].State != want {
			t.Errorf("%s: %+v, want %s", name, res, want)
		}
	}
}

// TestRuleOfAPort: a rule that may be for a name, of which the port is unknown, applies beside the one that matches,
// and does not decide instead of it.
func TestRuleOfAPort(t *testing.T) {
	is := func(names ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(names, n) }
	}
	rule := func(name string, mode Mode, matches, may func(string) bool) *Rule {
		return &Rule{o: RuleOptions{Name: name, Mode: mode, Matches: matches, MayMatch: may}}
	}
	exact, other := is("h:5000/m"), is("h/m")
	all := func(string) bool { return true }
	for _, tt := range []struct {
		rules     []*Rule
		name      string
		wantRules []string
	}{
		{[]*Rule{rule("port", Off, exact, other), rule("all", Enforce, all, nil)}, "h/m", []string{"all"}},
		{[]*Rule{rule("port", Warn, exact, other), rule("all", Enforce, all, nil)}, "h/m", []string{"port", "all"}},
		{[]*Rule{rule("port", Enforce, exact, other), rule("all", Off, all, nil)}, "h/m", []string{"port"}},
		{[]*Rule{rule("port", Enforce, exact, other)}, "h/m", []string{"port"}},
		{[]*Rule{rule("all", Off, all, nil), rule("port", Enforce, exact, other)}, "h/m", nil},
		{[]*Rule{rule("port", Off, exact, other), rule("all", Enforce, all, nil)}, "h:5000/m", nil},
		{[]*Rule{rule("port", Enforce, exact, other), rule("all", Off, all, nil)}, "h:6000/m", nil},
	} {
		var got []string
		for _, r := range (&Checker{Rules: tt.rules}).rules([]string{tt.name}) {
			got = append(got, r.o.Name)
		}
		if !slices.Equal(got, tt.wantRules) {
			t.Errorf("%s: rules %q, want %q", tt.name, got, tt.wantRules)
		}
	}
}
