package main

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// What a file of a token or of a signing config may have, in bytes.
const maxSignFile = 1 << 20

// maxFileName limits the file names that messages repeat, in bytes: the shortest private key, in base64 without its
// armor, has 64.
const maxFileName = 60

// webToken is what each token of OpenID Connect has: a header and claims in JSON, in base64, and a signature.
// https://www.rfc-editor.org/rfc/rfc7519
var webToken = regexp.MustCompile(`\bey[\w-]{10,}\.[\w-]{10,}\.`)

// signEnvironment are the variables of ballast-keyless: how it reaches services, and whom it trusts to be them.
var signEnvironment = []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// signing are the flags that sign.
type signing struct{ key, config, token string }

// signingFlags adds them.
func signingFlags(c *cobra.Command) *signing {
	f, s := c.Flags(), new(signing)
	f.StringVar(&s.key, "sign", "", "sign with a private key, a `file` in PEM: the manifest as cosign does, the files as model-signing does")
	f.StringVar(&s.config, "signing-config", "", "sign both without a key, with the identity of a token, by the services in this `file` of cosign (JSON)")
	f.StringVar(&s.token, "identity-token", "", "with --signing-config: `file` of the token (default: $SIGSTORE_ID_TOKEN, then that of GitHub Actions)")
	return s
}

func (s *signing) given() bool { return *s != signing{} }

// signer returns what signs, or nil. It checks before the model is sent what can be checked then.
func (s *signing) signer(ctx context.Context) (export.Signer, error) {
	switch {
	case s.key != "" && s.config != "":
		return nil, usage("--sign and --signing-config are two ways to sign: give one")
	case s.token != "" && s.config == "":
		return nil, usage("--identity-token needs --signing-config, a file with the services that sign (cosign signing-config create --with-default-services --out signing_config.json)")
	case s.key != "":
		key, err := privateKey(s.key)
		if err != nil {
			return nil, err
		}
		return export.WithKey(key), nil
	case s.config == "":
		return nil, nil
	}
	r, err := keyless.SignRequest{PayloadType: mediatype.InToto}, error(nil)
	if r.SigningConfig, err = readSmall(s.config); err != nil {
		return nil, usage("--signing-config: %w", err)
	}
	if r.Token, err = s.identity(time.Now()); err != nil {
		return nil, asUsage(err)
	}
	var env []string
	for _, key := range signEnvironment {
		if v := config.Getenv(key); v != "" {
			env = append(env, key+"="+v)
		}
	}
	var program keyless.Program
	if _, err := program.Sign(ctx, env, r); err != nil {
		return nil, asUsage(fmt.Errorf("--signing-config %s: %w", s.config, err))
	}
	return func(ctx context.Context, statements []dsse.Statement) (bundles [][]byte, by string, err error) {
		r := r
		if r.Token, err = s.identity(time.Now()); err != nil { // again: sending takes hours, and files are renewed
			return nil, "", fmt.Errorf("%w; what is sent is not sent again: get a new token and repeat the command", err)
		}
		for _, st := range statements {
			p, err := json.Marshal(st)
			if err != nil {
				return nil, "", err
			}
			r.Payloads = append(r.Payloads, p)
		}
		a, err := program.Sign(ctx, env, r)
		if err != nil {
			return nil, "", err
		}
		for _, b := range a.Bundles {
			if _, err := dsse.Parse(b); err != nil { // nodes would refuse it
				return nil, "", err
			}
		}
		return a.Bundles, a.Subject + " of " + a.Issuer, nil
	}, nil
}

// identity returns the token of the first source that has one.
func (s *signing) identity(now time.Time) (t keyless.Token, err error) {
	source := "SIGSTORE_ID_TOKEN"
	switch t.ID = strings.TrimSpace(config.Getenv(source)); {
	case webToken.MatchString(s.token):
		return keyless.Token{}, usage("--identity-token takes a file, not the token: everybody on the machine can read arguments. Revoke it if it lives long, and set SIGSTORE_ID_TOKEN instead")
	case s.token != "":
		p, err := readSmall(s.token)
		if err != nil {
			return keyless.Token{}, usage("--identity-token: %w", err)
		}
		source, t.ID = "--identity-token "+s.token, strings.TrimSpace(string(p))
	case t.ID == "":
		t.RequestURL, t.RequestToken = config.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), config.Getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
		if t.RequestURL == "" || t.RequestToken == "" {
			return keyless.Token{}, usage("--signing-config needs a token that says who signs: --identity-token FILE, SIGSTORE_ID_TOKEN, or in GitHub Actions \"permissions: id-token: write\"")
		}
		return t, nil
	}
	c, err := t.Claims()
	if err != nil {
		return keyless.Token{}, fmt.Errorf("%s: %w", source, err)
	}
	if end := time.Unix(c.Expires, 0); !now.Before(end) {
		return keyless.Token{}, fmt.Errorf("%s: the identity token has expired (%s): %w", source, c, errdefs.ErrUnauthenticated)
	}
	return t, nil
}

// readSmall reads a file of at most maxSignFile bytes.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxSignFile+1))
	if err == nil && len(p) > maxSignFile {
		err = errors.New("is larger than 1 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// privateKey reads the private key of --sign.
func privateKey(file string) (crypto.Signer, error) {
	if strings.Contains(file, "\n") || strings.Contains(file, "-----BEGIN") {
		return nil, usage("--sign takes a file, not the key: everybody on the machine can read arguments. Replace the key if others use the machine, and write it to a file that only you can read")
	}
	p, err := os.ReadFile(file)
	if path := (*fs.PathError)(nil); errors.As(err, &path) && len(file) > maxFileName { // it may be the key
		err = path.Err
	}
	if err != nil {
		return nil, usage("--sign: %w", err)
	}
	key, err := dsse.ParsePrivateKey(p)
	if err != nil {
		return nil, usage("--sign %s: %w", file, err)
	}
	return key, nil
}
