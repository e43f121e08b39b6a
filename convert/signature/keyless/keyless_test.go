package keyless

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changed returns a JSON file with changes of its members, named by a path of keys.
func changed(t testing.TB, p []byte, path string, change func(any) any) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(p, &all); err != nil {
		t.Fatal(err)
	}
	in, keys := all, strings.Split(path, "/")
	for _, k := range keys[:len(keys)-1] {
		in = in[k].(map[string]any)
	}
	last := keys[len(keys)-1]
	if in[last] = change(in[last]); in[last] == nil {
		delete(in, last)
	}
	out, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVerify verifies signatures by the public instance of Sigstore, and refuses what is not whole.
func TestVerify(t *testing.T) {
	p := &Program{Path: converttest.Keyless(t)}
	public, other := read(t, "public-good.json"), read(t, "scaffolding.json")
	for _, v := range []string{"v0.3.1", "v1.0.0", "v1.0.1", "v1.1.0"} {
		b := read(t, v+"/model.sig")
		var envelope struct {
			DSSE struct {
				Payload []byte `json:"payload"`
			} `json:"dsseEnvelope"`
		}
		if err := json.Unmarshal(b, &envelope); err != nil {
			t.Fatal(err)
		}
		got, err := p.Verify(t.Context(), Request{TrustedRoot: public, Bundle: b})
		want := Answer{
			Signed: digest.FromString(fmt.Sprintf("DSSEv1 28 application/vnd.in-toto+json %d %s", len(envelope.DSSE.Payload), envelope.DSSE.Payload)),
			Issuer: "https://sigstore.verify.ibm.com/oauth2", Subject: "stefanb@us.ibm.com",
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", v, got, err, want)
		}
	}
	b := read(t, "v1.1.0/model.sig")
	without := func(any) any { return nil }
	of := func(name string) func(any) any {
		var o map[string]any
		if err := json.Unmarshal(other, &o); err != nil {
			t.Fatal(err)
		}
		return func(any) any { return o[name] }
	}
	entry := func(change func(map[string]any)) func(any) any {
		return func(v any) any { change(v.([]any)[0].(map[string]any)); return v }
	}
	key, err := os.ReadFile("../oms/testdata/v1.1.0-elliptic-key/model.sig")
	if err != nil {
		t.Fatal(err)
	}
	// The only time that is left is in the entry of the log, which has a signature of it.
	late := changed(t, b, "verificationMaterial/timestampVerificationData", without)
	for name, r := range map[string]struct {
		root, bundle []byte
		want         string
	}{
		"another trusted root":             {other, b, "log"},
		"certificates of others":           {changed(t, public, "certificateAuthorities", of("certificateAuthorities")), b, "leaf certificate"},
		"the log of others":                {changed(t, public, "tlogs", of("tlogs")), b, "log"},
		"certificates that nobody can see": {changed(t, public, "ctlogs", of("ctlogs")), b, "signed certificate timestamp"},
		"no entry of a log":                {public, changed(t, b, "verificationMaterial/tlogEntries", without), "log"},
		"no time":                          {public, changed(t, late, "verificationMaterial/tlogEntries", entry(func(e map[string]any) { delete(e, "inclusionPromise") })), "timestamp"},
		"after the certificate expired":    {public, changed(t, late, "verificationMaterial/tlogEntries", entry(func(e map[string]any) { e["integratedTime"] = "1760072340" })), "log"},
		"another payload":                  {public, changed(t, b, "dsseEnvelope/payload", func(any) any { return "e30=" }), "payload"},
		"another signature":                {public, changed(t, b, "dsseEnvelope/signatures", func(any) any { return []any{map[string]any{"sig": "AAAA"}} }), ""},
		"a message without a statement":    {public, changed(t, b, "dsseEnvelope", without), "bundle"},
		"a key":                            {public, key, ""},
		"no bundle":                        {public, []byte("x"), "bundle"},
		"no root":                          {[]byte("x"), b, "trusted root"},
		"an empty root":                    {[]byte("{}"), b, "trusted root"},
		"a deep bundle":                    {public, bytes.Repeat([]byte("["), 8<<20), "bundle"},
		"a large bundle":                   {public, changed(t, b, "dsseEnvelope/payload", func(any) any { return bytes.Repeat([]byte("[1,"), 2<<20) }), "log"},
	} {
		a, err := p.Verify(t.Context(), Request{TrustedRoot: r.root, Bundle: r.bundle})
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), r.want) || a != (Answer{}) {
			t.Errorf("%s: %+v, %v, want refused: %s", name, a, err, r.want)
		}
	}
	if _, err := p.Verify(t.Context(), Request{TrustedRoot: public, Bundle: make([]byte, MaxRequest)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too large: %v", err)
	}
	if got, err := p.Verify(t.Context(), Request{TrustedRoot: public, Bundle: late}); err != nil || got.Subject == "" {
		t.Errorf("with the time of the log alone: %+v, %v", got, err)
	}
}

// TestConfined looks at the process that waits for a bundle: it has a user of its own, and can neither gain nor open
// anything.
func TestConfined(t *testing.T) {
	p := &Program{Path: converttest.Keyless(t)}
	cmd, err := p.command(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	dir := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	status, limits := map[string]string{}, ""
	for end := time.Now().Add(20 * time.Second); !strings.Contains(limits, "Max open files            0                    0 "); time.Sleep(10 * time.Millisecond) {
		l, err := os.ReadFile(dir + "limits")
		if err != nil || time.Now().After(end) {
			t.Fatalf("the process does not give up opening files: %v\n%s", err, l)
		}
		limits = string(l)
	}
	text, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		status[k] = strings.TrimSpace(v)
	}
	none := "0000000000000000"
	want := map[string]string{"NoNewPrivs": "1", "CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none, "Groups": ""}
	for k, w := range want {
		if status[k] != w {
			t.Errorf("%s is %q, want %q", k, status[k], w)
		}
	}
	for _, k := range []string{"Uid", "Gid"} {
		ids := slices.Compact(strings.Fields(status[k]))
		if len(ids) != 1 || len(ids[0]) != len("2013265920") {
			t.Errorf("%s is %q, want one of the range", k, status[k])
		}
	}
	for _, l := range []string{"Max core file size        0 ", "Max file size             0 ", "Max cpu time              10 ", "Max data size             268435456 "} {
		if !strings.Contains(limits, l) {
			t.Errorf("no %q in %s", l, limits)
		}
	}
	if env, err := os.ReadFile(dir + "environ"); err != nil || len(env) > 0 {
		t.Errorf("environment %q, %v", env, err)
	}
	threads, err := filepath.Glob(dir + "task/*/status")
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads: %v, %v", threads, err)
	}
	for _, name := range threads {
		if p, err := os.ReadFile(name); err == nil && !bytes.Contains(p, []byte("NoNewPrivs:\t1\n")) {
			t.Errorf("%s can gain privileges", name)
		}
	}
}

// TestUserIDs are in the range that nobody gives away.
func TestUserIDs(t *testing.T) {
	seen := map[uint32]bool{}
	for range 1000 {
		id := userID()
		if seen[id] = true; id < 0x78000000 || id >= 0x7fff0000 {
			t.Fatalf("user %#x", id)
		}
	}
	if len(seen) < 990 {
		t.Errorf("%d users for 1000 processes", len(seen))
	}
}

// TestPrograms gets no answer from programs that fail, hang or say something else.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	sum := digest.FromString("x").String()
	whole := `{"signed":"` + sum + `","issuer":"i","subject":"s"}`
	scripts := map[string]string{
		"fails": "echo secret >&2; exit 3", "is killed": "kill -9 $$", "hangs": "while :; do :; done", "is silent": "", "prints garbage": "echo x",
		"prints much": "while :; do echo '{\"signed\":'; done", "prints two": "echo '" + whole + whole + "'", "says more": `echo '{"signed":"` + sum + `","issuer":"i","subject":"s","more":1}'`,
		"names no issuer": `echo '{"signed":"` + sum + `","subject":"s"}'`, "names no subject": `echo '{"signed":"` + sum + `","issuer":"i"}'`,
		"names no digest": `echo '{"issuer":"i","subject":"s"}'`, "names another digest": `echo '{"signed":"sha512:00","issuer":"i","subject":"s"}'`,
		"says both": `echo '{"problem":"p","signed":"` + sum + `","issuer":"i","subject":"s"}'`, "says half": `echo '{"problem":"p","issuer":"i"}'`, "says nothing": "echo '{}'",
	}
	ask := func(name, text string, limit time.Duration) (Answer, error) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return (&Program{Path: path}).Verify(ctx, Request{Bundle: make([]byte, 1<<20)})
	}
	for name, text := range scripts {
		limit := time.Minute
		if name == "hangs" {
			limit = time.Second
		}
		start := time.Now()
		if a, err := ask(name, text, limit); !errdefs.IsUnavailable(err) || a != (Answer{}) {
			t.Errorf("a program that %s: %+v, %v", name, a, err)
		}
		if time.Since(start) > 30*time.Second {
			t.Errorf("a program that %s took %s", name, time.Since(start))
		}
	}
	if _, err := ask("refuses", `echo '{"problem":"no"}'`, time.Minute); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a program that refuses: %v", err)
	}
	if a, err := ask("answers", "echo '"+whole+"'", time.Minute); err != nil || a != (Answer{Signed: digest.Digest(sum), Issuer: "i", Subject: "s"}) {
		t.Errorf("a program that answers: %+v, %v", a, err)
	}
	if _, err := (&Program{}).Verify(t.Context(), Request{}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "keyless signatures need ballast-keyless: install it in /") {
		t.Errorf("no program: %v", err)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, s := range slices.Sorted(maps.Keys(map[string]bool{
		`{"problem":"p"}`: true, `{"signed":"` + digest.FromString("x").String() + `","issuer":"i","subject":"s"}`: true, `{"Issuer":"i"}`: true, "{} {}": true, "": true,
	})) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		a, err := parseAnswer(p)
		if err != nil {
			if !errdefs.IsUnavailable(err) || a != (Answer{}) {
				t.Errorf("%+v, %v", a, err)
			}
			return
		}
		if (a.Problem == "") != (a.Issuer != "" && a.Subject != "" && a.Signed.Validate() == nil) {
			t.Errorf("half an answer: %+v", a)
		}
		out, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseAnswer(out); err != nil || again != a {
			t.Errorf("%+v, %v, want %+v", again, err, a)
		}
	})
}
