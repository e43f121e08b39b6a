package registry_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// withConfig puts an image that was converted ahead into u, with another config.
func (u *upstream) withConfig(t *testing.T, repository, tag string, m ocispec.Manifest, edit func(map[string]any)) digest.Digest {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(u.Blob(repository, m.Config.Digest), &config); err != nil {
		t.Fatal(err)
	}
	edit(config)
	p, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = u.PutBlob(repository, p), int64(len(p))
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return u.Put(repository, tag, manifest, mediatype.OCIManifest)
}

// licence sets the licence in a config.
func licence(l string) func(map[string]any) {
	return func(c map[string]any) { c["descriptor"].(map[string]any)["licenses"] = []string{l} }
}

// TestManifestOnly: a stranger has the manifest of a private model, and none of its blobs, so nothing is served by
// his name.
func TestManifestOnly(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true} {
		f, u, evil := newFacade(t, remote.Options{}), newUpstream(t), newUpstream(t)
		b := converttest.Ollama(converttest.Files(weights(1000)), converttest.OllamaConfigNew)
		u.Add("org/model", "v1", b)
		m, made := u.ahead(t, "org/model", "v1")
		u.SetUser("org/model", "alice:s3cret")
		f.get(t, u, "org/model", "v1", basic("alice:s3cret")...)
		p, typ := b.Manifest, b.MediaType
		if ahead {
			p, typ = made, mediatype.OCIManifest
		}
		evil.Put("x/y", "v1", p, typ)
		if r := f.ask(t, http.MethodGet, "/v2/x/y/manifests/v1", evil.Host()); r.status == http.StatusOK {
			t.Errorf("converted ahead %v: %s", ahead, r.body)
		}
		for _, d := range []ocispec.Descriptor{m.Config, m.Layers[len(m.Layers)-1]} {
			if r := f.ask(t, http.MethodGet, "/v2/x/y/blobs/"+d.Digest.String(), evil.Host()); r.status == http.StatusOK {
				t.Errorf("converted ahead %v: a stranger reads %s: %s", ahead, d.MediaType, r.body)
			}
		}
		f.get(t, u, "org/model", "v1", basic("alice:s3cret")...)
	}
}

// TestRecordOfOthers: a stranger who pushes other bytes for an image does not change what it is for others.
func TestRecordOfOthers(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	m, made := u.ahead(t, "org/model", "v1")
	u.SetUser("org/model", "alice:s3cret")
	f.get(t, u, "org/model", "v1", basic("alice:s3cret")...)
	d := digest.FromBytes(made)
	before, err := f.h.Store.Catalog.Image(d)
	if err != nil {
		t.Fatal(err)
	}
	m.Annotations["org.example.changed"] = "yes"
	changed, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	u.Mount("org/model", "evil/x")
	u.Put("evil/x", "v1", changed, mediatype.OCIManifest)
	f.get(t, u, "evil/x", "v1")
	after, err := f.h.Store.Catalog.Image(d)
	if err != nil || before.Ahead != after.Ahead || before.Origin != after.Origin {
		t.Errorf("before %+v, after %+v, %v", before, after, err)
	}
	if of, err := f.h.Made(b.Digest(), ""); err != nil || of.Manifest != d {
		t.Errorf("the image of the origin is %+v, %v", of, err)
	}
	for _, what := range []string{"manifests/" + d.String(), "blobs/" + m.Config.Digest.String()} {
		if r := f.ask(t, http.MethodGet, "/v2/org/model/"+what, u.Host(), basic("alice:s3cret")...); r.status != http.StatusOK {
			t.Errorf("%s: status %d: %s", what, r.status, r.body)
		}
	}
}

// TestImagesOfStrangers: what is shown by a name is judged by the images of that name, whatever licence others give
// to the same table, and however many they make.
func TestImagesOfStrangers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ team, strangers string }{{"gpl-3.0", "mit"}, {"mit", "gpl-3.0"}} {
		for _, repository := range []string{"aaa/m", "zzz/m"} {
			f, u := newFacade(t, remote.Options{}), newUpstream(t)
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Licenses: []string{"mit"}})
			u.Add("org/m", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
			m, _ := u.ahead(t, "org/m", "v1")
			u.Mount("org/m", "team/m")
			u.Mount("org/m", repository)
			u.withConfig(t, "team/m", "v1", m, licence(tt.team))
			for i := range 5 {
				tag := fmt.Sprint("v", i)
				u.withConfig(t, repository, tag, m, func(c map[string]any) {
					licence(tt.strangers)(c)
					c["descriptor"].(map[string]any)["title"] = tag
				})
				f.get(t, u, repository, tag)
			}
			f.team(t, u, "v1")
			_, err := f.h.Admit(t.Context(), registry.Candidate{Table: m.Layers[len(m.Layers)-1].Digest, Names: []string{u.Host() + "/team/m"}})
			if (err == nil) != (tt.team == "mit") {
				t.Errorf("%s of the team, %s of %s: %v", tt.team, tt.strangers, repository, err)
			}
		}
	}
}

// TestConfigOfSigned: a signature of a manifest does not cover another config with the same table, also when the
// signed model was pulled before.
func TestConfigOfSigned(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	key, files := f.signedFiles(t, signature.TypeCosign)
	b := converttest.ModelPackRaw(files)
	u.Add("team/m", "v1", b)
	u.cosign(t, key, b.Digest())
	m, _ := u.ahead(t, "team/m", "v1")
	u.withConfig(t, "team/m", "evil", m, func(c map[string]any) { c["descriptor"].(map[string]any)["title"] = "not signed" })
	for _, when := range []string{"before", "after"} {
		if r := f.team(t, u, "evil"); r.status != http.StatusForbidden {
			t.Errorf("%s the signed model was pulled: status %d: %s", when, r.status, r.body)
		}
		f.get(t, u, "team/m", "v1")
	}
}

// TestBareConfig refuses a model by the digest of its registry whose config gives containers an environment:
// containerd has the config.
func TestBareConfig(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	f.h.Origins = true
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/m", "v1", b)
	if r := f.ask(t, http.MethodGet, "/v2/org/m/manifests/"+b.Digest().String(), u.Host()); r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(b.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"Env", "env", "Labels", "Healthcheck"} {
		for _, typ := range []string{m.Config.MediaType, mediatype.OCIConfig} {
			m := m
			m.Config.MediaType = typ
			d := u.withConfig(t, "org/m", "", m, func(c map[string]any) { c["config"].(map[string]any)[key] = []string{"x"} })
			if r := f.ask(t, http.MethodGet, "/v2/org/m/manifests/"+d.String(), u.Host()); r.status == http.StatusOK || !strings.Contains(strings.ToLower(string(r.body)), strings.ToLower(key)) {
				t.Errorf("%s, %s: status %d: %s", key, typ, r.status, r.body)
			}
		}
	}
}
