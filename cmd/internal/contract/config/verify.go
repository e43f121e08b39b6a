package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/hostname"
)

// Verify configures which models may be used, by their signatures and their content.
type Verify struct {
	Rule []VerifyRule `toml:"rule,omitempty" comment:"Which models may be used, by signature, code and licence. Tables in a later file replace all of those in\nearlier files."`
}

// VerifyRule is what some models must fulfil.
type VerifyRule struct {
	Match    string   `toml:"match" comment:"host, or host/repository; * matches any characters. The first rule that matches applies."`
	Mode     string   `toml:"mode" comment:"off: do not check; warn: log models that the rule does not accept; enforce: refuse them."`
	Any      []Signer `toml:"any,omitempty" comment:"An accepted signer; one of those of a rule must have signed the model. Relative paths start at the\ndirectory of this file."`
	DenyCode bool     `toml:"deny_code,omitempty" comment:"Allow models of data and text only: no programs, and no files that can run code when they are loaded."`
	Licenses []string `toml:"licenses,omitempty" comment:"Accepted licences, as in the config of the model. Empty: any licence, or none."`
}

// Signer is an accepted signer.
type Signer struct {
	Type    string `toml:"type" comment:"oms or cosign."`
	Key     string `toml:"key,omitempty" comment:"File with public keys (PEM)."`
	Roots   string `toml:"roots,omitempty" comment:"File with CA certificates (PEM)."`
	Subject string `toml:"subject,omitempty" comment:"Name in the certificate of the signer. With roots: with its type, email:, uri:, dns: or cn: (common name).\nWith trusted_root: the name alone, an email address or a URI."`

	TrustedRoot string `toml:"trusted_root,omitempty" comment:"File with the trusted root (JSON) of keyless signatures, which need issuer and subject."`
	Issuer      string `toml:"issuer,omitempty" comment:"Who vouches for the subject: an issuer of OpenID Connect, exactly as in the certificate. Needs trusted_root."`
}

// The values of VerifyRule.Mode.
const (
	VerifyOff     = "off"
	VerifyWarn    = "warn"
	VerifyEnforce = "enforce"
)

// The values of Signer.Type.
const (
	SignerOMS    = "oms"
	SignerCosign = "cosign"
)

// Matches reports whether the rule applies to a name, "host/path".
func (r *VerifyRule) Matches(name string) bool { return matches(r.Match, name) }

// MayMatch reports whether the rule is for a port of the host of a name without a port, which containerd leaves out.
// Such a rule can refuse the name, but not allow it.
func (r *VerifyRule) MayMatch(name string) bool { return mayMatch(r.Match, name) }

// Requires returns the match of the first rule by which an image of a host can be refused because of
// its signatures, or "". Of a pattern for the host and a path, only the host is compared.
func (v *Verify) Requires(host string) string {
	for _, r := range v.Rule {
		of, below, _ := strings.Cut(r.Match, "/")
		all := matches(r.Match, host) || below == "*" && matches(of, host)
		if i := strings.Index(of, "*"); i >= 0 { // it also stands for slashes
			of = of[:i+1]
		}
		switch {
		case r.Mode == VerifyEnforce && len(r.Any) > 0 && covers(of, host):
			return r.Match
		case all:
			return ""
		}
	}
	return ""
}

// Hosts returns the hosts that rules name in full.
func (v *Verify) Hosts() (hosts []string) {
	for _, r := range v.Rule {
		if host, _, _ := strings.Cut(r.Match, "/"); !strings.ContainsAny(host, "*+") {
			hosts = append(hosts, hostname.Normal(host))
		}
	}
	return hosts
}

// Wild returns hosts that stand for those that rules name by a pattern, with the pattern.
func (v *Verify) Wild() map[string]string {
	all := map[string]string{}
	for _, r := range v.Rule {
		if host, _, _ := strings.Cut(r.Match, "/"); strings.Contains(host, "*") {
			all[strings.ReplaceAll(host, "*", "x")] = host
		}
	}
	return all
}

// beside makes relative paths of files absolute, in the directory dir.
func (v *Verify) beside(dir string) {
	for i := range v.Rule {
		for j := range v.Rule[i].Any {
			s := &v.Rule[i].Any[j]
			for _, p := range []*string{&s.Key, &s.Roots, &s.TrustedRoot} {
				if *p != "" && !filepath.IsAbs(*p) {
					*p = filepath.Join(dir, *p)
				}
			}
		}
	}
}

// checkVerify checks the rules without reading keys.
func (c *Config) checkVerify() error {
	for i, r := range c.Verify.Rule {
		key := fmt.Sprintf("verify.rule %d", i+1)
		switch {
		case r.Match == "":
			return invalid(key, "match is empty")
		case unusual(r.Match) != "":
			return invalid(key, "match %q matches nothing: names have %s", r.Match, unusual(r.Match))
		case !slices.Contains([]string{VerifyOff, VerifyWarn, VerifyEnforce}, r.Mode):
			return invalid(key, "mode %q is not one of off, warn, enforce", r.Mode)
		case r.Mode != VerifyOff && len(r.Any) == 0 && !r.DenyCode && len(r.Licenses) == 0:
			return invalid(key, "requires nothing: set any, deny_code or licenses")
		}
		for j, s := range r.Any {
			if why := s.problem(); why != "" {
				return invalid(fmt.Sprintf("%s, any %d", key, j+1), "%s", why)
			}
		}
	}
	return nil
}

// unusual returns how a pattern of names must be written, if it is written otherwise: such a pattern
// would silently match nothing.
func unusual(pattern string) string {
	_, address := formats.All().OfURL(pattern)
	isArchive := address != "" && address != pattern
	if strings.Contains(pattern, "://") && !isArchive || strings.Contains(pattern, "@") {
		return "neither a scheme nor a digest"
	}
	return ""
}

// subject matches a name in a certificate with its type.
var subject = regexp.MustCompile(`^(email|uri|dns|cn):.`)

// problem returns the problem of a signer, or "".
func (s *Signer) problem() string {
	switch {
	case s.Type != SignerOMS && s.Type != SignerCosign:
		return fmt.Sprintf("type %q is not one of oms, cosign", s.Type)
	case s.TrustedRoot != "" && (s.Key != "" || s.Roots != ""):
		return "trusted_root is for keyless signatures: key and roots need a signer of their own"
	case s.TrustedRoot != "" && (s.Issuer == "" || s.Subject == ""):
		return "keyless signatures need both issuer and subject beside trusted_root"
	case s.TrustedRoot != "":
		return ""
	case s.Issuer != "":
		return "issuer is for keyless signatures: it needs trusted_root"
	case s.Key == "" && s.Roots == "":
		return fmt.Sprintf("a signer of type %s needs a key, roots or a trusted_root", s.Type)
	case s.Subject != "" && s.Roots == "":
		return "subject is for certificates: it needs roots or trusted_root"
	case s.Subject != "" && !subject.MatchString(s.Subject):
		return fmt.Sprintf("subject %q has no type: write email:, uri:, dns: or cn: (common name) before it", s.Subject)
	}
	return ""
}
