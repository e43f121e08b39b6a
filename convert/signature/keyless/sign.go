package keyless

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// SignCommand is the argument with which the program signs.
const SignCommand = "sign"

// MaxSignRequest limits a SignRequest and its answer in JSON, in bytes: two statements, in bundles of 8 MiB, in base64.
const MaxSignRequest = 32 << 20

// maxSignTime limits a run that signs: a certificate is valid for ten minutes.
const maxSignTime = 5 * time.Minute

// A SignRequest is what the program reads to sign, as JSON. Without payloads, it checks the config and asks nobody.
type SignRequest struct {
	SigningConfig []byte   `json:"signingConfig"` // a file with application/vnd.dev.sigstore.signingconfig.v0.2+json
	Token         Token    `json:"token"`
	PayloadType   string   `json:"payloadType"`
	Payloads      [][]byte `json:"payloads,omitempty"`
}

// A Token shows who signs. It is secret, and never part of an error.
type Token struct {
	ID string `json:"id,omitempty"` // a token of OpenID Connect, in the compact form of a JSON Web Token

	// Where GitHub Actions gives one, instead of ID.
	// https://docs.github.com/en/actions/reference/security/oidc
	RequestURL   string `json:"requestURL,omitempty"`
	RequestToken string `json:"requestToken,omitempty"`
}

// A SignAnswer is what the program writes when it signs, as JSON: a problem, or the others.
type SignAnswer struct {
	Problem string   `json:"problem,omitempty"`
	Issuer  string   `json:"issuer,omitempty"` // as in the certificate
	Subject string   `json:"subject,omitempty"`
	Bundles [][]byte `json:"bundles,omitempty"` // one for each payload
}

// Sign asks for bundles. The program runs as the caller, with the environment env: where its proxy and its
// certificates are. It returns errdefs.ErrPermissionDenied with what the program, or a service, says against it, and
// errdefs.ErrUnavailable if there is no answer; without payloads, errdefs.ErrInvalidArgument for a config that cannot
// be used.
func (p *Program) Sign(ctx context.Context, env []string, r SignRequest) (a SignAnswer, err error) {
	in, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if len(in) > MaxSignRequest {
		return a, fmt.Errorf("statements of %d bytes are too large to sign: %w", len(in), errdefs.ErrInvalidArgument)
	}
	path, err := p.Find()
	if err != nil {
		return a, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, maxSignTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, SignCommand)
	cmd.Env, cmd.Dir, cmd.WaitDelay = append([]string{}, env...), "/", time.Second // a nil Env would be that of the caller
	out, err := run(cmd, in, MaxSignRequest, r.Token)
	if err != nil && ctx.Err() != nil { // otherwise it says that the program was killed
		err = fmt.Errorf("%s: %w: %w", cmd.Path, context.Cause(ctx), errdefs.ErrUnavailable)
	}
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return SignAnswer{}, fmt.Errorf("%s: answer: %w: %w", cmd.Path, err, errdefs.ErrUnavailable)
	}
	switch {
	case a.Problem != "" && len(r.Payloads) == 0:
		return SignAnswer{}, fmt.Errorf("%.1000s: %w", r.Token.Redact(a.Problem), errdefs.ErrInvalidArgument)
	case a.Problem != "":
		return SignAnswer{}, fmt.Errorf("%.1000s: %w", r.Token.Redact(a.Problem), errdefs.ErrPermissionDenied)
	case len(a.Bundles) != len(r.Payloads):
		return SignAnswer{}, fmt.Errorf("%s: %d bundles for %d statements: %w", cmd.Path, len(a.Bundles), len(r.Payloads), errdefs.ErrUnavailable)
	}
	return a, nil
}

// Redact removes the secrets of the token from a text.
func (t Token) Redact(s string) string {
	for _, secret := range []string{t.ID, t.RequestToken} {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[token]")
		}
	}
	return s
}

// Claims are what a token says about itself, unverified and not secret.
type Claims struct {
	Issuer   string `json:"iss"`
	Subject  string `json:"sub"`
	Audience any    `json:"aud"`
	Expires  int64  `json:"exp"` // seconds since 1970
}

// Claims returns what ID says. It returns errdefs.ErrInvalidArgument if it is not a JSON Web Token.
func (t Token) Claims() (c Claims, err error) {
	parts := strings.Split(t.ID, ".")
	if len(parts) == 3 {
		var p []byte
		if p, err = base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			err = json.Unmarshal(p, &c)
		}
	}
	if len(parts) != 3 || err != nil || c.Issuer == "" || c.Expires == 0 {
		return Claims{}, fmt.Errorf("the identity token is not a token of OpenID Connect (a JSON Web Token with iss and exp): %w", errdefs.ErrInvalidArgument)
	}
	return c, nil
}

func (c Claims) String() string {
	return fmt.Sprintf("issuer %.200q, subject %.200q, audience %.200q, valid until %s",
		c.Issuer, c.Subject, fmt.Sprint(c.Audience), time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
}
