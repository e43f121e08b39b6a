package carton

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of LINKS.
const (
	// MaxLinksSize limits LINKS, in bytes.
	MaxLinksSize = 4 << 20 // 4 MiB

	// maxURLs limits the URLs tried for a file, and maxURL the length of one, in bytes.
	maxURLs = 8
	maxURL  = 8 << 10
)

// linksVersion is the supported version of LINKS.
const linksVersion = 1

// parseLinks parses a LINKS file: the URLs of files by digest. It does not check whether a URL may
// be followed. It returns errdefs.ErrInvalidArgument, naming the digest, for an invalid file, and
// errdefs.ErrNotImplemented for another version.
func parseLinks(p []byte) (map[digest.Digest][]string, error) {
	t, err := parseTable(nameLinks, p, MaxLinksSize)
	if err != nil {
		return nil, err
	}
	t.version("version", linksVersion)
	all := map[digest.Digest][]string{}
	urls := t.table("urls")
	for k := range urls.m {
		d, err := parseHash(k)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameLinks, err)
		}
		if _, ok := all[d]; ok {
			return nil, invalid("%s: duplicate %s", nameLinks, d)
		}
		all[d] = list[string](urls, k, true)
	}
	return all, *t.err
}

// signed reports whether a URL can contain credentials, which allow a holder to read what others
// cannot. A signature is a part of the query, and cannot be distinguished from other parts, so any
// query counts.
func signed(s string) bool { return strings.Contains(s, "?") }

// checkURL parses an untrusted URL. The errors do not contain all of it: it can be signed. Whether
// http is allowed is decided by Options.HTTP.
func checkURL(s string) (*url.URL, error) {
	refused := func(why string) error {
		return fmt.Errorf("URL refused: %s: %w", why, errdefs.ErrPermissionDenied)
	}
	if len(s) > maxURL {
		return nil, refused(fmt.Sprintf("%d bytes, more than %d", len(s), maxURL))
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, refused("it cannot be parsed")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, refused(fmt.Sprintf("scheme %.20q", u.Scheme))
	case u.User != nil:
		return nil, refused("it has a user name")
	case u.Hostname() == "":
		return nil, refused("it has no host")
	}
	return u, nil
}
