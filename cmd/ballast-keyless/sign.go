package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"
)

// audience is whom Fulcio wants a token to be for.
// https://github.com/sigstore/fulcio/blob/v1.8.8/docs/oidc.md
const audience = "sigstore"

// Limits of requests to services.
const (
	timeout = 30 * time.Second
	tries   = 3
)

// runSign answers a request to sign. An answer never has a secret of the request.
func runSign(in io.Reader, out io.Writer) error {
	if err := confine(true); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	var r keyless.SignRequest
	if err := json.NewDecoder(io.LimitReader(in, keyless.MaxSignRequest)).Decode(&r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	a, err := signAll(context.Background(), &r)
	if err != nil {
		a = keyless.SignAnswer{Problem: fmt.Sprintf("%.2000s", r.Token.Redact(err.Error()))}
	}
	return json.NewEncoder(out).Encode(a)
}

// signAll signs all payloads with one key, which it forgets, and one certificate. It completes the token of r.
func signAll(ctx context.Context, r *keyless.SignRequest) (a keyless.SignAnswer, err error) {
	fulcio, o, err := services(r.SigningConfig)
	if err != nil {
		return a, fmt.Errorf("signing config: %w", err)
	}
	if len(r.Payloads) == 0 {
		return a, nil
	}
	if r.Token.ID == "" {
		if err := request(ctx, &r.Token); err != nil {
			return a, fmt.Errorf("identity token of GitHub Actions: %w", err)
		}
	}
	key, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		return a, err
	}
	der, err := sign.NewFulcio(&sign.FulcioOptions{BaseURL: fulcio, Timeout: timeout * tries, Transport: steady{}}).GetCertificate(
		ctx, key, &sign.CertificateProviderOptions{IDToken: r.Token.ID})
	if err != nil {
		about := "with its token"
		if claims, cerr := r.Token.Claims(); cerr == nil {
			about = fmt.Sprintf("with a token that says %s (Fulcio usually wants the audience %q, and only knows some issuers)", claims, audience)
		}
		return a, fmt.Errorf("certificate from %s %s: %w", fulcio, about, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return a, fmt.Errorf("certificate from %s: %w", fulcio, err)
	}
	of, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return a, fmt.Errorf("certificate from %s: %w", fulcio, err)
	}
	a.Issuer, a.Subject, o.CertificateProvider = of.Issuer, of.SubjectAlternativeName, made(der)
	for _, p := range r.Payloads {
		b, err := sign.Bundle(&sign.DSSEData{Data: p, PayloadType: r.PayloadType}, key, o)
		if err != nil {
			return a, fmt.Errorf("timestamp and log: %w", err)
		}
		out, err := protojson.Marshal(b)
		if err != nil {
			return a, err
		}
		a.Bundles = append(a.Bundles, out)
	}
	return a, nil
}

// services returns the URL of Fulcio, and the logs and timestamp authorities that a signing config chooses now.
// https://github.com/sigstore/protobuf-specs/blob/v0.5.1/protos/sigstore_trustroot.proto
func services(config []byte) (fulcio string, o sign.BundleOptions, err error) {
	c, err := root.NewSigningConfigFromJSON(config)
	if err != nil {
		return "", o, err
	}
	now := time.Now()
	ca, err := root.SelectService(c.FulcioCertificateAuthorityURLs(), sign.FulcioAPIVersions, now)
	if err != nil {
		return "", o, fmt.Errorf("service Fulcio: %w", err)
	}
	if len(c.TimestampAuthorityURLs()) > 0 {
		all, err := root.SelectServices(c.TimestampAuthorityURLs(), c.TimestampAuthorityURLsConfig(), sign.TimestampAuthorityAPIVersions, now)
		if err != nil {
			return "", o, fmt.Errorf("timestamp authorities: %w", err)
		}
		for _, s := range all {
			o.TimestampAuthorities = append(o.TimestampAuthorities, sign.NewTimestampAuthority(
				&sign.TimestampAuthorityOptions{URL: s.URL, Timeout: timeout * tries, Transport: steady{}}))
		}
	}
	clock := len(o.TimestampAuthorities) > 0
	if len(c.RekorLogURLs()) > 0 {
		all, err := root.SelectServices(c.RekorLogURLs(), c.RekorLogURLsConfig(), sign.RekorAPIVersions, now)
		if err != nil {
			return "", o, fmt.Errorf("service Rekor: %w", err)
		}
		for _, s := range all {
			clock = clock || s.MajorAPIVersion == 1 // version 2 gives no time
			o.TransparencyLogs = append(o.TransparencyLogs, sign.NewRekor(
				&sign.RekorOptions{BaseURL: s.URL, Timeout: timeout * tries, Retries: tries - 1, Version: s.MajorAPIVersion}))
		}
	}
	if !clock {
		return "", o, errors.New("it names neither a timestamp authority nor Rekor 1, so nobody could tell that the certificate was valid when it signed")
	}
	return ca.URL, o, nil
}

// made is a certificate that is there already.
type made []byte

// GetCertificate implements sign.CertificateProvider.
func (m made) GetCertificate(context.Context, sign.Keypair, *sign.CertificateProviderOptions) ([]byte, error) {
	return m, nil
}

// request asks GitHub Actions for the token of a job.
// https://docs.github.com/en/actions/reference/security/oidc
func request(ctx context.Context, t *keyless.Token) error {
	u, err := url.Parse(t.RequestURL)
	if err != nil {
		return err
	}
	q := u.Query()
	q.Set("audience", audience)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+t.RequestToken)
	res, err := (&http.Client{Timeout: timeout * tries, Transport: steady{}}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Value string `json:"value"`
	}
	err = json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&answer)
	if res.StatusCode != http.StatusOK || err != nil || answer.Value == "" {
		return fmt.Errorf("%s answers %s without a token", u.Host, res.Status)
	}
	t.ID = answer.Value
	return nil
}

// steady asks again when a service is busy. After that, the error is what the service says. It follows no redirect:
// http.Client would send the token to another port of the host too, also without TLS.
type steady struct{}

// RoundTrip implements http.RoundTripper.
func (steady) RoundTrip(r *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		res, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && res.StatusCode/100 == 3 {
			res.Body.Close()
			return nil, fmt.Errorf("it answers %s, to %.300q; redirects are not followed, for they would get the token: name its final address", res.Status, res.Header.Get("Location"))
		}
		if err != nil || res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests {
			return res, err
		}
		said, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		res.Body.Close()
		if try == tries {
			return nil, fmt.Errorf("it answers %s: %q", res.Status, said)
		}
		select {
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		case <-time.After(time.Duration(try) * time.Second):
		}
		r = r.Clone(r.Context())
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}
