package localstore

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
)

// The defaults of optional parts of a name.
const (
	defaultHost      = "registry.ollama.ai"
	defaultNamespace = "library"
	defaultTag       = "latest"

	publicHost = "ollama.com" // the same as defaultHost
)

// A Name is the name of a model.
// https://github.com/ollama/ollama/blob/v0.17.4/types/model/name.go
type Name struct{ Host, Namespace, Model, Tag string }

func (n Name) String() string {
	return n.Host + "/" + n.Namespace + "/" + n.Model + ":" + n.Tag
}

// ParseName parses [host/][namespace/]model[:tag].
func ParseName(s string) (Name, error) {
	n := Name{Host: defaultHost, Namespace: defaultNamespace, Tag: defaultTag}
	rest := s
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		rest, n.Tag = rest[:i], rest[i+1:]
	}
	switch parts := strings.Split(rest, "/"); len(parts) {
	case 1:
		n.Model = parts[0]
	case 2:
		n.Namespace, n.Model = parts[0], parts[1]
	case 3:
		n.Host, n.Namespace, n.Model = parts[0], parts[1], parts[2]
	}
	if !n.valid() {
		return Name{}, fmt.Errorf("model name %.200q is not [host/][namespace/]model[:tag]: %w", s, errdefs.ErrInvalidArgument)
	}
	return n.canonical(), nil
}

// isPart reports whether s has 1 to longest characters: ASCII letters, digits, "_", and after the first also marks.
func isPart(s, marks string, longest int) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case i == 0 || strings.IndexByte(marks, c) < 0:
			return false
		}
	}
	return s != "" && len(s) <= longest
}

func (n Name) valid() bool {
	return isPart(n.Host, ".:-", 350) && isPart(n.Namespace, "-", 80) && isPart(n.Model, ".-", 80) && isPart(n.Tag, ".-", 80)
}

func (n Name) canonical() Name {
	if strings.EqualFold(n.Host, publicHost) {
		n.Host = defaultHost
	}
	return n
}

// key is equal for names of the same model.
func (n Name) key() string { return strings.ToLower(n.canonical().String()) }

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// isShadow reports whether n is a name that Ollama created internally for a model run by llama.cpp.
func (n Name) isShadow() bool {
	return n.Namespace == defaultNamespace && n.Model == "llamacpp" && hexDigest.MatchString(n.Tag)
}
