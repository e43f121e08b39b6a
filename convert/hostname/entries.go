package hostname

import (
	"cmp"
	"iter"
	"path"
	"slices"
	"strings"
)

// An entry is a key of a docker config.
type entry struct {
	key  string
	host string // in its normal form; it may have patterns
	path string // a repository or a directory above some; empty for the whole registry
	rank int
}

// The ranks of entries with the same path. "docker login" writes dockerHub for Docker Hub.
const (
	rankDockerHub = iota
	rankHost
	rankPattern
)

// DockerHub is the name of Docker Hub in a docker config.
// https://github.com/docker/cli/blob/v28.0.0/cli/registry/registry.go
const DockerHub = "https://index.docker.io/v1/"

// Entries returns the keys of a docker config whose credentials are for a repository at a normal host, those to use
// first first: those with the longest path, of these the ones without a pattern, and then those with the longest host.
//
// A key is a host, or a host and a path, which is the repository or a directory above it, never a part of its name. A
// scheme is ignored, and so are v1 and v2 at the beginning of a path, the version of the interface. Each label of a
// host may be a pattern (*, ?, [a-z]) and stands for one label: "*.dkr.ecr.*.amazonaws.com". The port is not.
// https://github.com/containers/image/blob/v5.36.2/docs/containers-auth.json.5.md
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/credentialprovider/keyring.go
func Entries(keys iter.Seq[string], host, repository string) []string {
	var found []entry
	for key := range keys {
		if e := parseEntry(key); (repository+"/" == e.path+"/" || e.path == "" || strings.HasPrefix(repository, e.path+"/")) && e.isFor(host) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b entry) int {
		return cmp.Or(cmp.Compare(len(b.path), len(a.path)), cmp.Compare(a.rank, b.rank), cmp.Compare(len(b.host), len(a.host)), strings.Compare(a.key, b.key))
	})
	var sorted []string
	for _, e := range found {
		sorted = append(sorted, e.key)
	}
	return sorted
}

func parseEntry(key string) entry {
	_, rest, hasScheme := strings.Cut(key, "://")
	if !hasScheme {
		rest = key
	}
	host, path, _ := strings.Cut(rest, "/")
	path = strings.Trim(path, "/")
	if first, below, _ := strings.Cut(path, "/"); first == "v1" || first == "v2" {
		path = below
	}
	return entry{key: key, host: Normal(host), path: path}
}

// isFor reports whether the host of an entry is host, and sets the rank.
func (e *entry) isFor(host string) bool {
	if e.host == host {
		if e.rank = rankHost; e.key == DockerHub {
			e.rank = rankDockerHub
		}
		return true
	}
	e.rank = rankPattern
	return slices.ContainsFunc(append([]string{host}, Others(host)...), e.matches)
}

// matches reports whether the pattern of an entry is one of host.
func (e *entry) matches(host string) bool {
	pattern, patternPort := Split(e.host)
	name, port := Split(host)
	patterns, labels := strings.Split(pattern, "."), strings.Split(name, ".")
	if patternPort != port || len(patterns) != len(labels) || strings.Contains(pattern, ":") {
		return false // an address is no pattern, although it has brackets
	}
	for i, p := range patterns {
		if ok, err := path.Match(p, labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
