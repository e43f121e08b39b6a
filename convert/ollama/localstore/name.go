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

var (
	hostPart      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}$`)
	namespacePart = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,79}$`)
	modelPart     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$`)
)

func (n Name) valid() bool {
	return hostPart.MatchString(n.Host) && namespacePart.MatchString(n.Namespace) && modelPart.MatchString(n.Model) && modelPart.MatchString(n.Tag)
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
