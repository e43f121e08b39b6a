package keyless

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

const inToto = "application/vnd.in-toto+json"

// signRequest asks a Sigstore for two signatures.
func signRequest(t *testing.T, s *converttest.Sigstore, claims map[string]any) SignRequest {
	t.Helper()
	config, err := os.ReadFile(s.SigningConfig)
	if err != nil {
		t.Fatal(err)
	}
	return SignRequest{SigningConfig: config, Token: Token{ID: s.Token(claims)}, PayloadType: inToto, Payloads: [][]byte{[]byte(`{"a":1}`), []byte(`{"b":2}`)}}
}

// TestSign makes signatures that the program verifies as those of the token's identity, by a token and by GitHub Actions,
// and also if a service is busy at first.
func TestSign(t *testing.T) {
	p, s := &Program{Path: converttest.Keyless(t)}, converttest.NewSigstore(t)
	var asked atomic.Int64
	s.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && asked.Add(1) == 1 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	root, err := os.ReadFile(s.TrustedRoot)
	if err != nil {
		t.Fatal(err)
	}
	job := signRequest(t, s, nil)
	job.Token = Token{}
	job.Token.RequestURL, job.Token.RequestToken = s.GitHub()
	for subject, r := range map[string]SignRequest{
		"release@team.example": signRequest(t, s, map[string]any{"sub": "1234", "email": "release@team.example", "email_verified": true}),
		"https://github.example/team/models/.github/workflows/release.yml@refs/heads/main": job,
	} {
		a, err := p.Sign(t.Context(), nil, r)
		if err != nil || a.Issuer != s.Issuer || a.Subject != subject {
			t.Fatalf("%s: %+v, %v", subject, a, err)
		}
		for i, b := range a.Bundles {
			got, err := p.Verify(t.Context(), Request{TrustedRoot: root, Bundle: b})
			want := Answer{Issuer: s.Issuer, Subject: subject, Signed: digest.FromString(fmt.Sprintf("DSSEv1 %d %s %d %s", len(inToto), inToto, len(r.Payloads[i]), r.Payloads[i]))}
			if err != nil || got != want {
				t.Errorf("%s: %+v, %v, want %+v", subject, got, err, want)
			}
		}
	}
	// One certificate for both entries of the log: a request was repeated, and three follow for each signer.
	if n := asked.Load(); n != 7 {
		t.Errorf("%d requests, want 7", n)
	}
}

// TestSignRefused says what is wrong, and never shows a token, also if a service does.
func TestSignRefused(t *testing.T) {
	p := &Program{Path: converttest.Keyless(t)}
	claims := map[string]any{"sub": "release@team.example"}
	for name, tt := range map[string]struct {
		change func(*converttest.Sigstore, *SignRequest)
		before func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"no config":        {change: func(_ *converttest.Sigstore, r *SignRequest) { r.SigningConfig = []byte("{") }, want: "signing config: "},
		"no Fulcio":        {change: edit(`"caUrls":[{"majorApiVersion":1`, `"caUrls":[{"majorApiVersion":9`), want: "signing config: service Fulcio: no matching"},
		"no time":          {change: edit(`"rekorTlogUrls":[{"majorApiVersion":1`, `"rekorTlogUrls":[{"majorApiVersion":2`), want: "signing config: it names neither a timestamp authority"},
		"another audience": {change: token(map[string]any{"sub": "release@team.example", "aud": "somebody"}), want: `audience "somebody"`},
		"another issuer":   {change: token(map[string]any{"sub": "release@team.example", "iss": "https://other.example"}), want: `issuer "https://other.example"`},
		"expired":          {change: token(map[string]any{"sub": "release@team.example", "exp": 1}), want: "valid until 1970-01-01T00:00:01Z"},
		"no token":         {change: func(_ *converttest.Sigstore, r *SignRequest) { r.Token.ID = "secret-secret" }, want: "certificate from "},
		"another request token": {change: func(s *converttest.Sigstore, r *SignRequest) {
			r.Token.ID = ""
			r.Token.RequestURL, r.Token.RequestToken = s.URL+"/github?api-version=2", "guess-guess"
		}, want: "GitHub Actions: "},
		"a service that is down":  {before: fails("/signingCert", http.StatusBadGateway), want: "502 Bad Gateway"},
		"a log that is down":      {before: fails("/entries", http.StatusBadRequest), want: "timestamp and log: "},
		"a service that repeats":  {before: fails("/signingCert", http.StatusBadRequest), want: "[token]"},
		"a certificate of nobody": {before: says("/signingCert", `{"signedCertificateDetachedSct":{"chain":{"certificates":["x"]}}}`), want: "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := converttest.NewSigstore(t)
			s.Before = tt.before
			r := signRequest(t, s, claims)
			if tt.change != nil {
				tt.change(s, &r)
			}
			a, err := p.Sign(t.Context(), nil, r)
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tt.want) || len(a.Bundles) > 0 {
				t.Errorf("%+v, %v, want refused: %s", a, err, tt.want)
			}
			for _, secret := range []string{r.Token.ID, r.Token.RequestToken} {
				if secret != "" && err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the token is in %v", err)
				}
			}
		})
	}
	s := converttest.NewSigstore(t)
	r := signRequest(t, s, claims)
	r.Payloads = nil
	s.Close()
	if a, err := p.Sign(t.Context(), nil, r); err != nil || len(a.Bundles) > 0 {
		t.Errorf("a check without payloads asks somebody: %+v, %v", a, err)
	}
	if _, err := (&Program{Path: "/none/ballast-keyless"}).Sign(t.Context(), nil, r); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "install it in /none") {
		t.Errorf("no program: %v", err)
	}
	r.Payloads = [][]byte{make([]byte, MaxSignRequest)}
	if _, err := p.Sign(t.Context(), nil, r); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too large: %v", err)
	}
}

// TestSignEnvironment gives the program what the caller lists, and nothing of the caller's own environment.
func TestSignEnvironment(t *testing.T) {
	t.Setenv("BALLAST_TEST_SECRET", "hidden")
	dir := t.TempDir()
	p := &Program{Path: filepath.Join(dir, Name)}
	if err := os.WriteFile(p.Path, []byte("#!/bin/sh\necho \"${BALLAST_TEST_SECRET-} ${HTTPS_PROXY-}\" >"+dir+"/seen\necho {}\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for want, env := range map[string][]string{" \n": nil, " http://proxy.example\n": {"HTTPS_PROXY=http://proxy.example"}} {
		_, err := p.Sign(t.Context(), env, SignRequest{})
		if got, readErr := os.ReadFile(filepath.Join(dir, "seen")); err != nil || readErr != nil || string(got) != want {
			t.Errorf("with %q the program has %q, want %q: %v, %v", env, got, want, err, readErr)
		}
	}
}

// TestSignRedirect sends no token to where a service redirects, not even to another port of its host.
func TestSignRedirect(t *testing.T) {
	var followed atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(other.Close)
	for path, code := range map[string]int{"/signingCert": http.StatusPermanentRedirect, "/github": http.StatusFound} {
		p, s := &Program{Path: converttest.Keyless(t)}, converttest.NewSigstore(t)
		s.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, path) {
				return false
			}
			http.Redirect(w, r, other.URL, code)
			return true
		}
		r := signRequest(t, s, map[string]any{"sub": "release@team.example"})
		if path == "/github" {
			r.Token = Token{}
			r.Token.RequestURL, r.Token.RequestToken = s.GitHub()
		}
		if _, err := p.Sign(t.Context(), nil, r); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("it answers %d %s, to %q", code, http.StatusText(code), other.URL)) {
			t.Errorf("%s, %d: %v", path, code, err)
		}
	}
	if n := followed.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestSignCanceled ends the program when the caller stops, and says so.
func TestSignCanceled(t *testing.T) {
	p, s := &Program{Path: converttest.Keyless(t)}, converttest.NewSigstore(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is noticed after that only
		cancel()
		<-r.Context().Done()
		return true
	}
	if _, err := p.Sign(ctx, nil, signRequest(t, s, map[string]any{"sub": "me"})); !errors.Is(err, context.Canceled) || !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}

func edit(old, with string) func(*converttest.Sigstore, *SignRequest) {
	return func(_ *converttest.Sigstore, r *SignRequest) {
		r.SigningConfig = bytes.ReplaceAll(r.SigningConfig, []byte(old), []byte(with))
	}
}

func token(claims map[string]any) func(*converttest.Sigstore, *SignRequest) {
	return func(s *converttest.Sigstore, r *SignRequest) { r.Token.ID = s.Token(claims) }
}

// fails repeats in its answer what it was asked with.
func fails(path string, status int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, path) {
			http.Error(w, r.Header.Get("Authorization"), status)
			return true
		}
		return false
	}
}

func says(path, text string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, path) {
			fmt.Fprint(w, text)
			return true
		}
		return false
	}
}

// TestClaims reads what a token says, and no other text.
func TestClaims(t *testing.T) {
	s := converttest.NewSigstore(t)
	c, err := Token{ID: s.Token(map[string]any{"sub": "me", "exp": 1})}.Claims()
	if err != nil || c.Issuer != s.Issuer || c.Subject != "me" || !time.Unix(c.Expires, 0).Equal(time.Unix(1, 0)) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{"", "a.b", "secret", "a.b.c", "a.e30.c", "a.b.c.d", strings.Repeat(".", 100)} {
		if c, err := (Token{ID: text}).Claims(); !errdefs.IsInvalidArgument(err) || text != "" && strings.Contains(err.Error(), text) && len(text) > 5 {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
}
