package registry_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// rule makes f check what is called team/….
func (f *facade) rule(t *testing.T, o signature.RuleOptions) {
	t.Helper()
	o.Name, o.Matches = "*/team/*", func(name string) bool { return strings.Contains(name, "/team/") }
	r, err := signature.NewRule(o)
	if err != nil {
		t.Fatal(err)
	}
	f.h.Signatures = &signature.Checker{Rules: []*signature.Rule{r}, Store: f.h.Store, Log: f.h.Log}
}

// sign returns a bundle with the signature of a model that has files.
func sign(t *testing.T, key crypto.Signer, files []converttest.File) []byte {
	t.Helper()
	var list []filetable.File
	for _, f := range files {
		list = append(list, filetable.File{Path: f.Path, Type: filetable.TypeReg, Digest: digest.FromBytes(f.Data)})
	}
	s, err := oms.Statement("model", list)
	if err != nil {
		t.Fatal(err)
	}
	return bundleOf(t, key, s)
}

func bundleOf(t *testing.T, key crypto.Signer, s dsse.Statement) []byte {
	t.Helper()
	p, err := dsse.Sign(key, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// attach puts a blob with an artifact of some type into a repository, as a referrer of a manifest. Where
// is "api" or "tag".
func (u *upstream) attach(t *testing.T, where, repository string, of digest.Digest, artifactType, mediaType string, p []byte) {
	t.Helper()
	config := []byte("{}")
	u.PutBlob(repository, p)
	u.PutBlob(repository, config)
	m, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, ArtifactType: artifactType,
		Config:  ocispec.Descriptor{MediaType: mediatype.OCIEmpty, Digest: digest.FromBytes(config), Size: 2},
		Layers:  []ocispec.Descriptor{{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}},
		Subject: &ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: of},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := u.Put(repository, "", m, mediatype.OCIManifest)
	list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"artifactType":%q}]}`, mediatype.OCIIndex, mediatype.OCIManifest, d, len(m), artifactType)
	if where == "tag" {
		u.Put(repository, remote.ReferrersTag(of), list, mediatype.OCIIndex)
		return
	}
	u.Serve("/v2/"+repository+"/referrers/"+of.String(), list)
}

// legacy attaches a signature of cosign from before the bundles.
func (u *upstream) legacy(t *testing.T, key crypto.Signer, repository string, of digest.Digest) {
	t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"}}`, of)
	sum := sha256.Sum256(payload)
	sig, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"architecture":"","os":""}`)
	u.PutBlob(repository, payload)
	u.PutBlob(repository, config)
	m, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []ocispec.Descriptor{{
			MediaType: mediatype.CosignPayload, Digest: digest.FromBytes(payload), Size: int64(len(payload)),
			Annotations: map[string]string{mediatype.CosignSignatureKey: base64.StdEncoding.EncodeToString(sig)},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u.Put(repository, remote.ReferrersTag(of)+".sig", m, mediatype.OCIManifest)
}

// ask for a tag of team/m.
func (f *facade) team(t *testing.T, u *upstream, tag string) reply {
	t.Helper()
	return f.ask(t, http.MethodGet, "/v2/team/m/manifests/"+tag, u.Host())
}

// TestSigned answers tags of models that are signed, wherever the signature is, and refuses others.
func TestSigned(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	stranger, _ := converttest.Signer(t, t.TempDir())
	files := converttest.Files(weights(1000))
	signed := append([]converttest.File{{Path: oms.SignatureFile, Data: sign(t, key, files), Mode: 0o644}}, files...)
	changed := append([]converttest.File{{Path: "z.json", Data: []byte("{}"), Mode: 0o644}}, signed...)
	model := converttest.ModelPackRaw(files)
	statement := cosign.Statement(model.Digest())
	for _, tt := range []struct {
		name, kind string
		model      *converttest.Built
		put        func(t *testing.T, u *upstream)
		want       string // of the error; empty: answered
	}{
		{"oms, a file", signature.TypeOMS, converttest.ModelPackRaw(signed), nil, ""},
		{"oms, a file in a tar without digests", signature.TypeOMS, converttest.ModelPackTar(signed), nil, ""},
		{"oms, a file in a tar of chunks", signature.TypeOMS, converttest.ModelPackChunked(signed, converttest.ZstdChunkedPodman, 64<<10), nil, ""},
		{"oms, a file, another file more", signature.TypeOMS, converttest.ModelPackRaw(changed), nil, `file \"z.json\" is not signed`},
		{"oms, a referrer", signature.TypeOMS, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, key, files))
		}, ""},
		{"oms, a referrer by tag", signature.TypeOMS, model, func(t *testing.T, u *upstream) {
			u.attach(t, "tag", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, key, files))
		}, ""},
		{"oms, a referrer of a stranger", signature.TypeOMS, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, stranger, files))
		}, "not signed by a trusted key"},
		{"oms, nothing", signature.TypeOMS, model, nil, "no signature was found"},
		{"cosign, a bundle", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, statement))
		}, ""},
		{"cosign, listed by the type of the config", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.OCIEmpty, mediatype.Bundle, bundleOf(t, key, statement))
		}, ""},
		{"cosign, a bundle by tag", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "tag", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, statement))
		}, ""},
		{"cosign, legacy", signature.TypeCosign, model, func(t *testing.T, u *upstream) { u.legacy(t, key, "team/m", model.Digest()) }, ""},
		{"cosign, legacy, where lists are not understood", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.legacy(t, key, "team/m", model.Digest())
			u.Serve("/v2/team/m/referrers/"+model.Digest().String(), []byte("<html>"))
		}, ""},
		{"cosign, legacy of a stranger", signature.TypeCosign, model, func(t *testing.T, u *upstream) { u.legacy(t, stranger, "team/m", model.Digest()) }, "not signed by a trusted key"},
		{"cosign, a bundle for another", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(digest.FromString("x"))))
		}, "the signature is not for"},
		{"cosign, a bundle of a model", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, key, files))
		}, "no signature was found"},
		{"cosign, rubbish", signature.TypeCosign, model, func(t *testing.T, u *upstream) {
			u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, []byte(`{"mediaType":"x"}`))
		}, "media type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: tt.kind, Key: public}}})
			u.Add("team/m", "v1", tt.model)
			u.Add("free/m", "v1", tt.model)
			if tt.put != nil {
				tt.put(t, u)
			}
			r := f.team(t, u, "v1")
			_, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
			if tt.want == "" {
				if r.status != http.StatusOK || err != nil {
					t.Fatalf("status %d: %s; prefetch: %v", r.status, r.body, err)
				}
				f.kept(t, u, tt.model, strings.Contains(tt.name, "tar"))
			} else {
				if r.status != http.StatusForbidden || !strings.Contains(string(r.body), tt.want) ||
					!strings.Contains(r.errorText(t), `[[verify.rule]] "*/team/*"`) || !strings.Contains(r.errorText(t), "/team/m is refused") {
					t.Errorf("status %d: %s, want %q", r.status, r.body, tt.want)
				}
				if !errdefs.IsFailedPrecondition(err) {
					t.Errorf("prefetch: %v", err)
				}
			}
			if f.get(t, u, "free/m", "v1"); strings.Contains(f.logs.String(), "violates a signature rule") {
				t.Error("a name without a rule was checked")
			}
		})
	}
}

// kept looks what is known of a model that was accepted.
func (f *facade) kept(t *testing.T, u *upstream, b *converttest.Built, pending bool) {
	t.Helper()
	im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
	if err != nil {
		t.Fatal(err)
	}
	name := u.Host() + "/team/m"
	if pending {
		if again, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{name}}); err != nil || !again {
			t.Errorf("before it is complete: pending %v, %v", again, err)
		}
		if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, name)}); err != nil {
			t.Fatal(err)
		}
		if again, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{name}, Complete: true}); err != nil || again {
			t.Fatalf("when it is complete: pending %v, %v", again, err)
		}
	}
	known, err := f.h.Signatures.Known(signature.Subject{Names: []string{name}, Image: im})
	if err != nil || len(known) != 1 || len(known[0].Signers) != 1 || known[0].Kept.IsZero() {
		t.Fatalf("kept: %+v, %v", known, err)
	}
	u.Close() // what was found holds without a network
	if again, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{name}}); err != nil || again {
		t.Errorf("offline: pending %v, %v", again, err)
	}
	f2 := newUpstream(t) // for free/m
	f2.Add("free/m", "v1", b)
	u.Server = f2.Server
}

// TestSignedChunks allows chunks to be read only if a signature covers their digests: that of a manifest,
// but for names in headers of tars. A signature of the files waits for the files.
func TestSignedChunks(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	files := converttest.Files(weights(300 << 10))
	raw, tars, chunks := converttest.ModelPackRaw(files), converttest.ModelPackTar(files), converttest.ModelPackChunked(files, converttest.ZstdChunkedPodman, 64<<10)
	for _, tt := range []struct {
		name    string
		kinds   []string
		model   *converttest.Built
		pending bool
	}{
		{"oms, no chunks", []string{signature.TypeOMS}, raw, false},
		{"oms, chunks", []string{signature.TypeOMS}, chunks, true},
		{"cosign, chunks", []string{signature.TypeCosign}, chunks, false},
		{"cosign, names in headers of tars", []string{signature.TypeCosign}, tars, true},
		{"oms or cosign, chunks", []string{signature.TypeOMS, signature.TypeCosign}, chunks, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			var any []signature.SignerOptions
			for _, kind := range tt.kinds {
				any = append(any, signature.SignerOptions{Type: kind, Key: public})
			}
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: any})
			u.Add("team/m", "v1", tt.model)
			u.attach(t, "api", "team/m", tt.model.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, key, files))
			u.legacy(t, key, "team/m", tt.model.Digest())
			im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
			if err != nil {
				t.Fatal(err)
			}
			early := false
			f.h.ShownEarly = func(context.Context, digest.Digest) (bool, error) { return early, nil }
			for _, early = range []bool{false, true} { // under another name
				want := http.StatusOK
				if early && tt.pending {
					want = http.StatusForbidden
				}
				if r := f.team(t, u, "v1"); r.status != want {
					t.Errorf("shown early %v: status %d, want %d: %s", early, r.status, want, r.body)
				}
			}
			for _, online := range []bool{true, false} { // then the stored result is used
				for _, complete := range []bool{false, true} {
					pending, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{u.Host() + "/team/m"}, Complete: complete})
					if want := tt.pending && !complete; err != nil || pending != want {
						t.Errorf("online %v, complete %v: pending %v, %v, want %v", online, complete, pending, err, want)
					}
				}
				u.Close()
			}
			if whole, err := f.h.Signatures.Whole(im.Table); err != nil || whole != tt.pending {
				t.Errorf("no byte before the whole file: %v, %v", whole, err)
			}
		})
	}
}

// TestPendingRefused refuses a model whose files are known when it is complete, and are others.
func TestPendingRefused(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	files := converttest.Files(weights(1000))
	bad := append([]converttest.File{{Path: "a.json", Data: []byte("{}"), Mode: 0o644}, {Path: oms.SignatureFile, Data: sign(t, key, files), Mode: 0o644}}, files...)
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeOMS, Key: public}}})
	u.Add("team/m", "v1", converttest.ModelPackTarZstd(bad))
	im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
	if err != nil {
		t.Fatal(err)
	}
	f.h.ShownEarly = func(_ context.Context, table digest.Digest) (bool, error) { return table == im.Table, nil }
	if r := f.team(t, u, "v1"); r.status != http.StatusForbidden || !strings.Contains(string(r.body), "in use under another name") {
		t.Errorf("shown by another name, which nobody asks about again: status %d: %s", r.status, r.body)
	}
	name := u.Host() + "/team/m"
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, name)}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{name}, Complete: true}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `"a.json" is not signed`) {
		t.Errorf("error %v", err)
	}
	if r := f.team(t, u, "v1"); r.status != http.StatusForbidden {
		t.Errorf("once it is known: status %d", r.status)
	}
}

// TestPreconvertedSigned refuses an unsigned image that claims a signed origin.
func TestPreconvertedSigned(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	files := converttest.Files(weights(1000))
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	model := converttest.ModelPackRaw(files)
	u.Add("team/m", "v1", model)
	u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(model.Digest())))

	m, body := u.ahead(t, "team/m", "v1")
	ahead := u.Put("team/m", "ahead", body, mediatype.OCIManifest)
	if r := f.team(t, u, "ahead"); r.status != http.StatusForbidden {
		t.Errorf("converted ahead, its origin signed: status %d: %s", r.status, r.body)
	}
	if r := f.team(t, u, ahead.String()); r.status != http.StatusForbidden {
		t.Errorf("the same by digest: status %d: %s", r.status, r.body)
	}
	table := m.Layers[len(m.Layers)-1].Digest
	if _, err := f.h.Admit(t.Context(), registry.Candidate{Table: table, Names: []string{u.Host() + "/team/m"}, Complete: true}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("when it is applied: %v", err)
	}
	u.attach(t, "api", "team/m", ahead, mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(ahead)))
	if r := f.team(t, u, "ahead"); r.status != http.StatusOK {
		t.Errorf("converted ahead, signed itself: status %d: %s", r.status, r.body)
	}
	if pending, err := f.h.Admit(t.Context(), registry.Candidate{Table: table}); err != nil || pending {
		t.Errorf("applied by nobody knows which name: pending %v, %v", pending, err)
	}
	m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString("layer"), Size: 5})
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	more := u.Put("team/m", "more", p, mediatype.OCIManifest)
	for _, object := range []string{"more", more.String()} { // it is known by its digest then
		if r := f.team(t, u, object); r.status != http.StatusForbidden {
			t.Errorf("the model, signed, with a layer more, %s: status %d: %s", object, r.status, r.body)
		}
	}
}

// TestModes has what a rule does besides refusing, and rules on what is in a model.
func TestModes(t *testing.T) {
	t.Parallel()
	_, public := converttest.Signer(t, t.TempDir())
	any := []signature.SignerOptions{{Type: signature.TypeOMS, Key: public}, {Type: signature.TypeCosign, Key: public}}
	files := converttest.Files(weights(1000))
	var harmless []converttest.File
	for _, f := range files {
		if f.Path != "scripts/generate.sh" {
			harmless = append(harmless, f)
		}
	}
	for _, tt := range []struct {
		name   string
		rule   signature.RuleOptions
		model  *converttest.Built
		status int
		want   string // in the answer or in the log
	}{
		{"off", signature.RuleOptions{Mode: signature.Off, Any: any}, converttest.ModelPackRaw(files), 200, ""},
		{"warn", signature.RuleOptions{Mode: signature.Warn, Any: any}, converttest.ModelPackRaw(files), 200, "violates a signature rule"},
		{"enforce", signature.RuleOptions{Mode: signature.Enforce, Any: any}, converttest.ModelPackRaw(files), 403, "no signature was found"},
		{"code", signature.RuleOptions{Mode: signature.Enforce, DenyCode: true}, converttest.ModelPackRaw(files), 403, "scripts/generate.sh"},
		{"no code", signature.RuleOptions{Mode: signature.Enforce, DenyCode: true}, converttest.ModelPackRaw(harmless), 200, ""},
		{"a licence that is not there", signature.RuleOptions{Mode: signature.Enforce, Licenses: []string{"mit"}}, converttest.DockerAIGGUF(files), 403, "licence"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			f.rule(t, tt.rule)
			u.Add("team/m", "v1", tt.model)
			r := f.team(t, u, "v1")
			if r.status != tt.status || !strings.Contains(string(r.body)+f.logs.String(), tt.want) {
				t.Errorf("status %d: %.300s, want %d and %q", r.status, r.body, tt.status, tt.want)
			}
		})
	}
	t.Run("a registry in trouble", func(t *testing.T) {
		t.Parallel()
		u, f := newUpstream(t), newFacade(t, remote.Options{})
		f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: any})
		u.Add("team/m", "v1", converttest.ModelPackRaw(files))
		u.Serve("/v2/team/m/referrers/"+converttest.ModelPackRaw(files).Digest().String(), []byte("<html>"))
		if r := f.team(t, u, "v1"); r.status != http.StatusForbidden {
			t.Errorf("status %d: %s", r.status, r.body)
		}
	})
	t.Run("an ordinary image", func(t *testing.T) {
		t.Parallel()
		u, f := newUpstream(t), newFacade(t, remote.Options{})
		f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: any})
		u.Put("team/m", "v1", ordinary(1), mediatype.OCIManifest)
		if r := f.team(t, u, "v1"); r.status != http.StatusForbidden {
			t.Errorf("status %d: %s", r.status, r.body)
		}
		if r := f.team(t, u, digest.FromBytes(ordinary(1)).String()); r.status != http.StatusOK {
			t.Errorf("by digest: status %d: %s", r.status, r.body)
		}
	})
}

// TestFailedChecks refuses a model that cannot be checked, also one with a signature of another kind.
func TestFailedChecks(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	files := converttest.Files(weights(1000))
	signed := append([]converttest.File{{Path: oms.SignatureFile, Data: sign(t, key, files), Mode: 0o644}}, files...)
	for _, files := range [][]converttest.File{files, signed} {
		failedChecks(t, public, files)
	}
}

func failedChecks(t *testing.T, public string, files []converttest.File) {
	t.Helper()
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
		t.Fatal(err)
	}
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		down := !strings.HasSuffix(r.URL.Path, "/manifests/v1")
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return down
	})
	if r := f.team(t, u, "v1"); r.status == http.StatusOK {
		t.Errorf("a tag, while no signature can be looked for: status %d", r.status)
	}
	u.Close()
	for _, complete := range []bool{false, true} {
		_, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: []string{u.Host() + "/team/m"}, Complete: complete})
		if !errdefs.IsUnavailable(err) || errdefs.IsFailedPrecondition(err) {
			t.Errorf("complete %v, while the registry is down: %v", complete, err)
		}
	}
}

// TestSignaturesTogether limits what is read for one check, whatever number of signatures there is.
func TestSignaturesTogether(t *testing.T) {
	t.Parallel()
	_, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	model := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("team/m", "v1", model)
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, Config: ocispec.Descriptor{MediaType: mediatype.OCIEmpty, Digest: digest.FromString("{}"), Size: 2}}
	for i := range 20 {
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: mediatype.Bundle, Digest: digest.FromString(fmt.Sprint(i)), Size: dsse.MaxSize})
	}
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	u.Put("team/m", remote.ReferrersTag(model.Digest())+".sig", p, mediatype.OCIManifest)
	if r := f.askOnce(t, http.MethodGet, "/v2/team/m/manifests/v1", u.Host()); r.status == http.StatusOK {
		t.Error("the model is accepted")
	}
	n := 0
	for _, r := range u.Requests() {
		if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return strings.HasSuffix(r.URL.Path, l.Digest.String()) }) {
			n++
		}
	}
	if n == 0 || n > 4 {
		t.Errorf("%d signatures of 8 MiB are asked for, want 4", n)
	}
}

// TestLargeReferrer: attestations beside a signature, which are larger than all that is read for a check, do not hide it.
func TestLargeReferrer(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	model := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("team/m", "v1", model)
	u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, make([]byte, 33<<20))
	u.legacy(t, key, "team/m", model.Digest())
	if r := f.team(t, u, "v1"); r.status != http.StatusOK {
		t.Errorf("status %d: %s", r.status, r.body)
	}
}

// TestSignersOfRepositories: a signature by somebody else in the first repository of a model does not end the search in
// the others, but the right one does.
func TestSignersOfRepositories(t *testing.T) {
	t.Parallel()
	stranger, _ := converttest.Signer(t, t.TempDir())
	key, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	model := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	var im store.Image
	var names []string
	for _, by := range []crypto.Signer{stranger, key} {
		name := fmt.Sprintf("%d/team/m", len(names))
		u.Add(name, "v1", model)
		u.legacy(t, by, name, model.Digest())
		var err error
		if im, err = f.h.Convert(t.Context(), u.ref(t, name, "v1")); err != nil {
			t.Fatal(err)
		}
		names = append(names, u.Host()+"/"+name)
	}
	var asked atomic.Int32
	u.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/v2/0/") {
			asked.Add(1)
		}
		return false
	})
	for i := range 2 {
		asked.Store(0)
		f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
		if _, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: names, Complete: true}); err != nil {
			t.Errorf("%v: %v", names, err)
		}
		if n := asked.Load(); n > 0 == (i > 0) {
			t.Errorf("%v: the first repository got %d requests", names, n)
		}
		slices.Reverse(names)
	}
}

// TestHungChecks: registries that do not answer questions for signatures do not stop the checks of others.
func TestHungChecks(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	model := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("team/m", "v1", model)
	u.attach(t, "api", "team/m", model.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(model.Digest())))
	var hung atomic.Int32
	began, end := make(chan struct{}, 100), make(chan struct{})
	var wait sync.WaitGroup
	for i := range 2 {
		e := newUpstream(t)
		for j := range 2 {
			e.Add("team/m", fmt.Sprint(j), converttest.ModelPackRaw(converttest.Files(weights(2000+10*i+j))))
		}
		e.Before(func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/referrers/") || strings.Contains(r.URL.Path, "/manifests/sha256-") {
				hung.Add(1)
				began <- struct{}{}
				select {
				case <-end:
				case <-r.Context().Done():
				}
				hung.Add(-1)
			}
			return false
		})
		for j := range 2 {
			wait.Go(func() { f.team(t, e, fmt.Sprint(j)) })
		}
	}
	for range 3 { // one of them has no second check
		<-began
	}
	if r := f.team(t, u, "v1"); r.status != http.StatusOK {
		t.Errorf("another registry: status %d: %s", r.status, r.body)
	}
	if n := hung.Load(); n < 3 {
		t.Errorf("%d checks are still hanging: another one has waited for their end", n)
	}
	close(end)
	wait.Wait()
}

// TestEachName checks a model of several names by the rules of all of them.
func TestEachName(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	_, other := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	var rules []*signature.Rule
	for name, key := range map[string]string{"/team/": public, "/other/": other} {
		r, err := signature.NewRule(signature.RuleOptions{
			Name: name, Matches: func(s string) bool { return strings.Contains(s, name) }, Mode: signature.Enforce,
			Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: key}},
		})
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	f.h.Signatures = &signature.Checker{Rules: rules, Store: f.h.Store}
	model := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("team/m", "v1", model)
	u.Add("free/m", "v1", model)
	u.legacy(t, key, "team/m", model.Digest())
	im, err := f.h.Convert(t.Context(), u.ref(t, "free/m", "v1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Complete: true}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("by no name, and accepted by no rule: %v", err)
	}
	if im, err = f.h.Convert(t.Context(), u.ref(t, "team/m", "v1")); err != nil {
		t.Fatal(err)
	}
	team, free, others := u.Host()+"/team/m", u.Host()+"/free/m", u.Host()+"/other/m"
	for _, tt := range []struct {
		names []string
		ok    bool
	}{
		{[]string{team}, true},
		{[]string{free}, true},
		{[]string{free, team}, true},
		{nil, true}, // one rule is enough, and the result is stored
		{[]string{others}, false},
		{[]string{team, others}, false},
		{[]string{others, team}, false},
		{[]string{free, others}, false},
	} {
		_, err := f.h.Admit(t.Context(), registry.Candidate{Table: im.Table, Names: tt.names, Complete: true})
		if (err == nil) != tt.ok || err != nil && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%v: %v, want allowed %v", tt.names, err, tt.ok)
		}
	}
}

// TestImportSigned asks the registry for the signatures of what is taken over from elsewhere.
func TestImportSigned(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	b := converttest.Ollama(converttest.Files(weights(1000)), converttest.OllamaConfigNew)
	ref := u.ref(t, "team/m", "v1")
	blobs := newBlobs(t, contentsOf(b)...)
	if _, err := f.take(t, ref, blobs, entry(b, "", nil), registry.ImportOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("nobody signed it: %v", err)
	}
	u.attach(t, "api", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(b.Digest())))
	if _, err := f.take(t, ref, blobs, entry(b, "", nil), registry.ImportOptions{}); err != nil {
		t.Errorf("signed in the registry: %v", err)
	}
}

// TestPrivateSigned finds signatures with the credentials of the caller.
func TestPrivateSigned(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("team/m", "v1", b)
	u.attach(t, "api", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(b.Digest())))
	u.SetUser("team/m", "joe:secret")
	if r := f.team(t, u, "v1"); r.status != http.StatusUnauthorized {
		t.Errorf("without credentials: status %d: %s", r.status, r.body)
	}
	if r := f.ask(t, http.MethodGet, "/v2/team/m/manifests/v1", u.Host(), basic("joe:secret")...); r.status != http.StatusOK {
		t.Errorf("with credentials: status %d: %s", r.status, r.body)
	}
}

// TestSignedWithoutRule finds what is signed if no rule asks, and by whom it says to be, and checks nothing.
func TestSignedWithoutRule(t *testing.T) {
	t.Parallel()
	key, _ := converttest.Signer(t, t.TempDir())
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	files := converttest.Files(weights(1000))
	b, plain := converttest.ModelPackRaw(files), converttest.ModelPackRaw(converttest.Files(weights(999)))
	u.Add("team/m", "v1", b)
	u.Add("team/m", "plain", plain)
	u.attach(t, "api", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, sign(t, key, files))
	u.legacy(t, key, "team/m", b.Digest())
	checked := func(tag string) []string {
		t.Helper()
		ref, err := remote.ParseRef(u.Host() + "/team/m:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		_, results, found, err := f.h.Checked(t.Context(), ref)
		if err != nil || len(results) > 0 {
			t.Errorf("%s: %+v, %v", tag, results, err)
		}
		return found
	}
	got := checked("v1")
	if len(got) != 2 || got[0] != "manifest "+b.Digest().String()+": a key without a name" || !strings.HasPrefix(got[1], "the files of the model: key ") {
		t.Errorf("got %q", got)
	}
	if got := checked("plain"); len(got) > 0 {
		t.Errorf("of another model: %q", got)
	}
}

// TestIndexSigned accepts a signature of the index for its model, and one of the model for the index.
func TestIndexSigned(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	for _, of := range []string{"index", "model", "nothing", "index with an image", "model beside an image"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
			b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
			u.Add("team/m", "", b)
			index := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"artifactType":%q,"digest":%q,"size":%d}]}`,
				mediatype.OCIIndex, mediatype.OCIManifest, mediatype.ModelPackManifest, b.Digest(), len(b.Manifest))
			if strings.HasSuffix(of, "image") {
				image := u.Put("team/m", "", ordinary(1), mediatype.OCIManifest)
				index = indexOf(entry(b, mediatype.ModelPackManifest, nil), ocispec.Descriptor{
					MediaType: mediatype.OCIManifest, Digest: image, Size: int64(len(ordinary(1))), Platform: &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
				})
			}
			d := u.Put("team/m", "v1", index, mediatype.OCIIndex)
			status := http.StatusOK
			switch of {
			case "model beside an image": // which containerd may take
				u.attach(t, "tag", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(b.Digest())))
				status = http.StatusForbidden
			case "index", "index with an image":
				u.attach(t, "api", "team/m", d, mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(d)))
			case "model":
				u.attach(t, "tag", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(b.Digest())))
			default:
				status = http.StatusForbidden
			}
			r := f.team(t, u, "v1")
			if r.status != status {
				t.Fatalf("status %d: %s, want %d", r.status, r.body, status)
			}
			if status != http.StatusOK {
				return
			}
			child := decode[ocispec.Index](t, r).Manifests[0].Digest
			if r := f.team(t, u, child.String()); r.status != http.StatusOK {
				t.Errorf("the model by digest, as containerd goes on: status %d: %s", r.status, r.body)
			}
		})
	}
}

// filesOf returns the files of a directory that are not empty: ignore-me is, and is unknown to signatures before v1.1.0.
func filesOf(t *testing.T, dir string) (files []converttest.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > 0 {
			files = append(files, converttest.File{Path: e.Name(), Data: p, Mode: 0o644})
		}
	}
	return files
}

// TestVectorsSigned answers models that model-signing signed.
func TestVectorsSigned(t *testing.T) {
	t.Parallel()
	const dir = "../signature/oms/testdata"
	for _, v := range []string{"v0.3.1-certificate", "v0.3.1-elliptic-key", "v1.0.0-certificate", "v1.0.0-elliptic-key", "v1.0.1-certificate", "v1.0.1-elliptic-key", "v1.1.0-certificate", "v1.1.0-elliptic-key"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			files := filesOf(t, filepath.Join(dir, v))
			signer := signature.SignerOptions{Type: signature.TypeOMS, Roots: filepath.Join(dir, "keys/ca-cert.pem")}
			if strings.HasSuffix(v, "-key") {
				signer = signature.SignerOptions{Type: signature.TypeOMS, Key: filepath.Join(dir, "keys/signing-key-pub.pem")}
			}
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{signer}})
			u.Add("team/m", "v1", converttest.ModelPackRaw(files))
			if r := f.team(t, u, "v1"); r.status != http.StatusOK {
				t.Errorf("status %d: %s", r.status, r.body)
			}
			files[len(files)-1].Data = append(files[len(files)-1].Data, 0)
			u.Add("team/m", "v1", converttest.ModelPackRaw(files))
			if r := f.team(t, u, "v1"); r.status != http.StatusForbidden {
				t.Errorf("changed: status %d: %s", r.status, r.body)
			}
		})
	}
}
