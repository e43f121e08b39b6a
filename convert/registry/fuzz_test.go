package registry

import (
	"net/url"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func FuzzParseTarget(f *testing.F) {
	d := digest.FromString("x").String()
	for _, s := range []string{
		"/v2/org/model/manifests/v1?ns=registry.example",
		"/v2/registry.example:5000/org/model/blobs/" + d,
		"/v2/a/manifests/blobs/b/manifests/v1?ns=docker.io",
		"/v2/../x/manifests/../y?ns=..",
		"/v2//manifests/?ns=",
		"/v2/manifests/v1?ns=a&ns=b",
		"/v2/org/model/manifests/v1?ns=u:p@host",
		"/v2/%2e%2e/manifests/%00",
		"/v2/",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		got, err := parseTarget(u)
		if err != nil {
			refusalOf(err)
			return
		}
		for _, part := range strings.Split(got.ref.Name(), "/") {
			if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "?#@%\\ \x00") {
				t.Errorf("parseTarget(%q) has name %q", s, got.ref.Name())
			}
		}
		if got.blob && got.ref.Digest == "" {
			t.Errorf("parseTarget(%q) is a blob without digest", s)
		}
	})
}
