package remote

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Ref is a normalised reference to an artifact in a registry, or to a URL. It is comparable.
type Ref struct {
	Host       string        // such as "docker.io" or "127.0.0.1:5000"
	Repository string        // such as "library/gemma"
	Tag        string        // may be empty if there is a Digest
	Digest     digest.Digest // may be empty if there is a Tag

	// URL is a scheme, a plus, and an http or https URL. All other fields are then empty.
	URL string
}

// maxURL is the largest length of an escaped URL, in bytes.
const maxURL = 2048

var (
	schemeRE = regexp.MustCompile(`^[a-z-]+$`)
	hostRE   = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$`)

	// numberRE matches the last part of what is an address, or nothing.
	// https://url.spec.whatwg.org/#ends-in-a-number-checker
	numberRE = regexp.MustCompile(`^(?:[0-9]+|0[Xx][0-9A-Fa-f]*)$`)

	// Upper case is not in the specification, but model hubs with a registry API use it in names.
	// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pulling-manifests
	repositoryRE = regexp.MustCompile(`^[A-Za-z0-9]+(?:(?:[._]|__|-+)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[._]|__|-+)[A-Za-z0-9]+)*)*$`)
	tagRE        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// maxName limits a host and a repository, in bytes.
const maxName = 255

// ParseRef parses a reference as containerd does: "gemma" is docker.io/library/gemma:latest. Unlike
// containerd it keeps the tag of a reference that has a tag and a digest, and supports
// "SCHEME+https://…". It returns errdefs.ErrInvalidArgument for an invalid reference.
func ParseRef(s string) (Ref, error) {
	if scheme, u, ok := strings.Cut(s, "+"); ok && schemeRE.MatchString(scheme) {
		return parseURL(scheme, u)
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil && strings.ToLower(s) != s {
		return parseUppercase(s, err)
	}
	if err != nil {
		return Ref{}, fmt.Errorf("reference %.300q: %w: %w", s, err, errdefs.ErrInvalidArgument)
	}
	named = reference.TagNameOnly(named)
	r := Ref{Host: reference.Domain(named), Repository: reference.Path(named)}
	if !isHost(r.Host) { // the parser accepts upper case in a host
		return Ref{}, fmt.Errorf("reference %.300q: upper case in a name without a host: %w", s, errdefs.ErrInvalidArgument)
	}
	if t, ok := named.(reference.Tagged); ok {
		r.Tag = t.Tag()
	}
	if d, ok := named.(reference.Digested); ok {
		r.Digest = d.Digest()
	}
	return r.checked()
}

// parseURL parses the URL after a scheme. It rejects user names, because names of URLs are not
// secret.
func parseURL(scheme, s string) (Ref, error) {
	u, err := url.Parse(s)
	if err == nil {
		u.Host = hostname.Address(u.Host, u.Scheme)
		s = u.String() // escaped, which may be longer
	}
	if err != nil || len(scheme+"+"+s) > maxURL || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return Ref{}, fmt.Errorf("reference: after %.20s+ comes an http or https URL, of at most %d bytes and without user name and fragment: %w",
			scheme, maxURL, errdefs.ErrInvalidArgument)
	}
	return Ref{URL: scheme + "+" + s}, nil
}

// parseUppercase parses a reference with upper case in the repository, which must have a host. err
// is the error of containerd's parser.
func parseUppercase(s string, err error) (Ref, error) {
	rest, d, hasDigest := strings.Cut(s, "@")
	host, rest, ok := strings.Cut(rest, "/")
	if !ok || !isHost(host) {
		return Ref{}, fmt.Errorf("reference %.300q: %w: %w", s, err, errdefs.ErrInvalidArgument)
	}
	repository, tag, ok := strings.Cut(rest, ":")
	if !ok && !hasDigest {
		tag = "latest"
	}
	return Ref{Host: host, Repository: repository, Tag: tag, Digest: digest.Digest(d)}.checked()
}

// isHost reports whether the first component of a reference is a host.
func isHost(s string) bool { return strings.ContainsAny(s, ".:") || s == "localhost" }

// NewRef returns the reference with a host, a repository and an object, which is a tag or a digest.
// It returns errdefs.ErrInvalidArgument if one of them is invalid.
func NewRef(host, repository, object string) (Ref, error) {
	r := Ref{Host: host, Repository: repository, Tag: object}
	if strings.Contains(object, ":") {
		r.Tag, r.Digest = "", digest.Digest(object)
	}
	return r.checked()
}

// named returns r with its host normalised, or an error if host or repository are invalid.
func (r Ref) named() (Ref, error) {
	r.Host = hostname.Normal(r.Host)
	if !wellFormedHost(r.Host) {
		return Ref{}, malformed("host", r.Host)
	}
	if len(r.Repository) > maxName || !repositoryRE.MatchString(r.Repository) {
		return Ref{}, malformed("repository", r.Repository)
	}
	return r, nil
}

// wellFormedHost reports whether s is a host, with or without a port.
func wellFormedHost(s string) bool {
	if len(s) > maxName || !hostRE.MatchString(s) {
		return false
	}
	name, port := hostname.Split(s)
	if strings.Contains(name[strings.LastIndexByte(name, ']')+1:], ":") {
		return false // the port is not one
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; !isIP(name) && numberRE.MatchString(last) {
		return false // resolvers read 127.1 and 0x7f.1 as addresses
	}
	_, err := strconv.ParseUint(cmp.Or(port, "1"), 10, 16)
	return err == nil
}

// checked is named, and also requires a tag or a digest.
func (r Ref) checked() (Ref, error) {
	r, err := r.named()
	if err != nil {
		return Ref{}, err
	}
	if (r.Tag != "" || r.Digest == "") && !tagRE.MatchString(r.Tag) {
		return Ref{}, malformed("tag", r.Tag)
	}
	if r.Digest != "" {
		if _, err := verify.ParseDigest(r.Digest.String()); err != nil {
			return Ref{}, fmt.Errorf("reference: %w", err)
		}
	}
	return r, nil
}

func malformed(what, s string) error {
	return fmt.Errorf("reference: %s %.300q is not well-formed: %w", what, s, errdefs.ErrInvalidArgument)
}

// hiddenQuery matches the digest that replaces the query in the name of a URL.
var hiddenQuery = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)

// Name returns "host/repository", or the URL with the digest of its query instead of the query: a
// query can be a signature, and names are recorded and logged. The name of a reference that already
// is such a name is the same.
func (r Ref) Name() string {
	if r.URL == "" {
		return r.Host + "/" + r.Repository
	}
	u, query, ok := strings.Cut(r.URL, "?")
	if ok && !hiddenQuery.MatchString(query) {
		query = "sha256-" + digest.FromString(query).Encoded()
	}
	if ok {
		u += "?" + query
	}
	return u
}

// Recorded returns r in the form in which images are recorded (store.Image.Refs): with the digest or the tag but not
// both, and the name in place of a URL.
func (r Ref) Recorded() string {
	if r.URL != "" {
		return r.Name()
	}
	if r.Digest != "" {
		r.Tag = ""
	}
	return r.String()
}

// Hidden reports whether r is the name of a URL without its query.
func (r Ref) Hidden() bool {
	_, query, _ := strings.Cut(r.URL, "?")
	return hiddenQuery.MatchString(query)
}

// Object returns the digest if there is one, otherwise the tag.
func (r Ref) Object() string {
	if r.Digest != "" {
		return r.Digest.String()
	}
	return r.Tag
}

// String returns "host/repository:tag@digest", without the empty parts, or the URL.
func (r Ref) String() string {
	if r.URL != "" {
		return r.URL
	}
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest.String()
	}
	return s
}
