package remote

import (
	"slices"
	"strings"
)

// aliases are the other names of registries that have several.
var aliases = map[string]string{
	"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io",
	"ollama.com":     "registry.ollama.ai",
	"huggingface.co": "hf.co",
}

// NormalHost returns the host of a Ref for a host as users and containerd write it: a registry has one
// name, so that rules, credentials and records for it cannot be avoided by another.
func NormalHost(host string) string {
	host = strings.ToLower(host)
	if to, ok := aliases[host]; ok {
		return to
	}
	return host
}

// otherNames returns the aliases of a normal host, sorted.
func otherNames(host string) (l []string) {
	for alias, to := range aliases {
		if to == host {
			l = append(l, alias)
		}
	}
	slices.Sort(l)
	return l
}
