package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/hostname"
)

// Carton maps a registry name, which need not exist, to URLs of cartons. There can be several
// tables [[carton]]; those of a file replace those of earlier files.
type Carton struct {
	Registry  string `toml:"registry" comment:"Registry host in references, such as \"carton.example\". It needs no registry, but a hosts.toml."`
	URL       string `toml:"url" comment:"URL of the carton. Its path must have {repository} and {tag} once each."`
	AllowHTTP bool   `toml:"allow_http" comment:"Allow a url with http: anybody on the network path can then replace the carton."`
}

// registryHost matches a host as written in references, in lower case.
var registryHost = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?$`)

// checkCartons checks that each URL is valid, and has its placeholders where they can change
// neither scheme nor host.
func (c *Config) checkCartons() error {
	seen := map[string]bool{}
	for i, m := range c.Carton {
		key := fmt.Sprintf("carton %d: ", i+1)
		switch {
		case !registryHost.MatchString(m.Registry) || !strings.ContainsAny(m.Registry, ".:") && m.Registry != "localhost":
			return invalid(key+"registry", "%q is not a host as in a reference, such as \"carton.example\"", m.Registry)
		case seen[hostname.Normal(m.Registry)]:
			return invalid(key+"registry", "%q occurs twice", m.Registry)
		}
		seen[hostname.Normal(m.Registry)] = true
		u, err := url.Parse(m.URL)
		switch {
		case err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "":
			return invalid(key+"url", "%q is not a URL with a host and without user name and fragment", m.URL)
		case u.Scheme != "https" && u.Scheme != "http":
			return invalid(key+"url", "%q is not https or http", m.URL)
		case u.Scheme == "http" && !m.AllowHTTP:
			return invalid(key+"url", "%q is not https; set allow_http = true if you want that", m.URL)
		case !hasPlaceholders(m.URL) || !hasPlaceholders(u.Path):
			return invalid(key+"url", "%q does not have {repository} and {tag} once each in its path, and no others", m.URL)
		}
	}
	return nil
}

// placeholder matches text in braces, and a single brace.
var placeholder = regexp.MustCompile(`\{[^{}]*\}|[{}]`)

func hasPlaceholders(s string) bool {
	found := placeholder.FindAllString(s, -1)
	slices.Sort(found)
	return slices.Equal(found, []string{"{repository}", "{tag}"})
}
