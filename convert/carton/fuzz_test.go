package carton

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
)

// maxFuzz limits the inputs, so that the time is spent on their structure.
const maxFuzz = 64 << 10

func FuzzManifest(f *testing.F) {
	hash := strings.Repeat("0a", 32)
	f.Add(converttest.GoodCarton([]byte("weights")).ManifestBytes())
	for _, s := range []string{
		"", "\n", "carton.toml=" + hash, "carton.toml=" + hash + "\r\n", "a=b=" + hash + "\ncarton.toml=" + strings.ToUpper(hash) + "\n",
		"carton.toml=" + hash + "\n\n", "../x=" + hash + "\n", "MANIFEST=" + hash + "\n", "carton.toml=" + hash + "\ncarton.toml=" + hash + "\n", "carton.toml=sha256\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		entries, err := parseManifest(p)
		if err != nil {
			return
		}
		var again strings.Builder
		seen := map[string]bool{}
		for _, e := range entries {
			if c, err := filetable.CleanPath(e.Path); err != nil || c != e.Path || seen[e.Path] || e.Path == nameManifest || e.Path == nameLinks {
				t.Fatalf("path %q", e.Path)
			}
			if _, err := verify.ParseDigest(e.Digest.String()); err != nil {
				t.Fatal(err)
			}
			seen[e.Path] = true
			fmt.Fprintf(&again, "%s=%s\n", e.Path, e.Digest.Encoded())
		}
		if got, want := again.String(), strings.ReplaceAll(string(p), "\r\n", "\n"); !strings.EqualFold(strings.TrimSuffix(got, "\n"), strings.TrimSuffix(strings.TrimSuffix(want, "\n"), "\r")) {
			t.Fatalf("written again %q, was %q", got, want)
		}
	})
}

func FuzzLinks(f *testing.F) {
	hash := strings.Repeat("0a", 32)
	for _, s := range []string{
		"", "version = 1\n[urls]\n", "version = 1\n[urls]\n" + hash + " = [\"https://example.com/a\", \"file:///etc/passwd\"]\n",
		"version = 1\n[urls]\n\"" + strings.ToUpper(hash) + "\" = []\n", "version = 2\n[urls]\n", "version = 1\nurls = {" + hash + " = ['a']}\n",
		"version = 1\nurls." + hash + " = [1]\n", "version = [[[[[[[[\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > maxFuzz {
			return
		}
		links, err := parseLinks(p)
		if err != nil {
			return
		}
		for d, urls := range links {
			if _, err := verify.ParseDigest(d.String()); err != nil {
				t.Fatal(err)
			}
			for _, s := range urls {
				if u, err := checkURL(s); err == nil && (u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.Hostname() == "") {
					t.Fatalf("URL %q was let through", s)
				}
			}
		}
	})
}

func FuzzInfo(f *testing.F) {
	for _, s := range []string{
		"", converttest.CartonInfo, "spec_version = 1\n[runner]\nrunner_name = 'a'\nrequired_framework_version = '=1.2.3'\n",
		"spec_version = 2\n", "spec_version = 1\n[[input]]\nname='x'\ndtype='int8'\nshape=[-1]\n", "spec_version = 1\nrunner = []\n",
		"a.b.c.d = [{e = [[]]}]\n", "required_platforms = ['aarch64', 'x']\n", "[runner.opts]\na = 1979-05-27T07:32:00Z\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > maxFuzz {
			return
		}
		info, err := ParseInfo(p)
		if err != nil {
			return
		}
		if info.Runner.Name == "" || !isVersionReq(info.Runner.FrameworkVersion) {
			t.Fatalf("runner %+v", info.Runner)
		}
	})
}

// FuzzCarton opens whole archives and reads all their small files.
func FuzzCarton(f *testing.F) {
	good := converttest.GoodCarton([]byte("weights"))
	f.Add(good.Bytes())
	linked := good.With(converttest.CartonFile{Path: "model/weights.bin", Data: []byte("weights"), URLs: []string{"https://example.com/a"}})
	f.Add(linked.Bytes())
	f.Add(good.With(converttest.CartonFile{Path: "model/l", Data: []byte("x"), Link: "../../etc/passwd"}).Bytes())
	f.Add(good.With(converttest.CartonFile{Path: "model/l", Data: []byte("x"), Link: "l"}).Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > maxFuzz {
			return
		}
		ctx := context.Background()
		c, err := Open(ctx, At(bytes.NewReader(p), int64(len(p))), Options{})
		if err != nil {
			return
		}
		m, err := c.Model(ctx)
		if err != nil {
			return
		}
		if len(m.Layers) != len(m.Table.Blobs) {
			t.Fatalf("%d layers, %d blobs", len(m.Layers), len(m.Table.Blobs))
		}
		fetch := c.Fetcher()
		for _, b := range m.Table.Blobs {
			if b.Size > maxFuzz {
				continue
			}
			body, _, err := fetch.Fetch(ctx, b.Digest, b.Size, 0, b.Size)
			if err != nil {
				continue
			}
			_, _ = verify.Read(body, b.Digest, b.Size, maxFuzz) // the archive can have any content
			body.Close()
		}
	})
}
