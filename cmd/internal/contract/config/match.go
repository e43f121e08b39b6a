package config

import (
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/convert/hostname"
)

// matches reports whether a pattern for a host, or a host and a path, matches a name, "host/path", or a URL
// (remote.Ref.Name). Both are compared in their normal form (hostname.Normal) and without regard to case, because
// all spellings of a name get the same model. * matches any characters, also slashes, and a port that is left out.
func matches(pattern, name string) bool {
	pattern = normalPattern(pattern)
	scheme, host, path := splitName(name)
	host, path = normalHost(scheme, host), strings.ToLower(path)
	hosts := []string{scheme + host}
	if port.FindStringIndex(host) == nil {
		hosts = append(hosts, scheme+host+":"+defaultPort(scheme))
	}
	for _, h := range hosts {
		if glob(pattern, h) || glob(pattern, h+"/"+path) {
			return true
		}
	}
	return false
}

// mayMatch reports whether a pattern with a port matches a name without one if that is the port of the name: containerd
// records hosts without ports.
func mayMatch(pattern, name string) bool {
	scheme, host, _ := splitName(name)
	if scheme != "" || port.MatchString(host) {
		return false
	}
	of, below, withPath := strings.Cut(pattern, "/")
	if withPath {
		below = "/" + below
	}
	at := port.FindStringIndex(of)
	return at != nil && matches(of[:at[0]]+below, name)
}

// covers reports whether a pattern matches a name, or may match it.
func covers(pattern, name string) bool { return matches(pattern, name) || mayMatch(pattern, name) }

// port matches the port at the end of a host.
var port = regexp.MustCompile(`:[0-9*]+$`)

// normalPattern returns a pattern in its normal form. A host with a * keeps the default port: what is left would match
// other ports too.
func normalPattern(pattern string) string {
	scheme, host, path := splitName(pattern)
	if strings.Contains(host, "*") {
		host = hostname.Address(host, "")
	} else {
		host = normalHost(scheme, host)
	}
	if path != "" {
		path = "/" + strings.ToLower(path)
	}
	return scheme + host + path
}

// normalHost returns the host of a name with a scheme, or "", in its normal form.
func normalHost(scheme, host string) string {
	if scheme == "" {
		return hostname.Normal(host)
	}
	return hostname.Address(host, urlScheme(scheme))
}

// splitName splits a name or a pattern. The scheme is that of the name of a URL, such as "carton+https://", or "".
func splitName(name string) (scheme, host, path string) {
	if i := strings.Index(name, "://"); i >= 0 {
		scheme, name = strings.ToLower(name[:i+len("://")]), name[i+len("://"):]
	}
	host, path, _ = strings.Cut(name, "/")
	return scheme, host, path
}

// urlScheme returns the scheme of the URL in a name.
func urlScheme(scheme string) string {
	s := strings.TrimSuffix(scheme, "://")
	return s[strings.LastIndexByte(s, '+')+1:]
}

func defaultPort(scheme string) string {
	if urlScheme(scheme) == "http" {
		return "80"
	}
	return "443"
}

// glob reports whether s matches a pattern, in which * stands for any characters.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	s, ok := strings.CutPrefix(s, parts[0])
	for i, p := range parts[1:] {
		if !ok {
			return false
		}
		if i == len(parts)-2 {
			return strings.HasSuffix(s, p)
		}
		_, s, ok = strings.Cut(s, p)
	}
	return ok && s == ""
}
