package admin

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// ParseRef parses a reference that a person wrote. The scheme "oci://" is allowed. A name
// without a registry is refused with errdefs.ErrInvalidArgument: "llama3.2" is one thing to
// Docker and another to Ollama.
func ParseRef(s string) (remote.Ref, error) {
	name := strings.TrimPrefix(s, "oci://")
	host, _, ok := strings.Cut(name, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return remote.Ref{}, fmt.Errorf("reference %.300q does not name a registry; write for example docker.io/%[2]s or registry.ollama.ai/library/%[2]s: %w",
			s, truncate(name), errdefs.ErrInvalidArgument)
	}
	return remote.ParseRef(name)
}

// truncate cuts what is too long to be a name in a message.
func truncate(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// stored returns r in the form that store.Image.Refs have: with the digest or the tag, not
// both.
func stored(r remote.Ref) string {
	if r.Digest != "" {
		r.Tag = ""
	}
	return r.String()
}
