package resolve

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// hubScheme is what is before a repository of the Hub of Hugging Face.
const hubScheme = "hf:"

// ParseRef parses a reference that a person wrote. The scheme "oci://" is allowed, and "hf:ORG/REPO[@REVISION]" is
// a repository of the Hub of Hugging Face. A name
// without a registry is refused with errdefs.ErrInvalidArgument: "llama3.2" is one thing to
// Docker and another to Ollama. The URL of a carton is "carton+https://…".
func ParseRef(s string) (remote.Ref, error) {
	if strings.HasPrefix(s, "carton+") {
		return remote.ParseRef(s)
	}
	if rest, ok := strings.CutPrefix(s, hubScheme); ok {
		repository, revision, pinned := strings.Cut(rest, "@")
		if !pinned {
			revision = "main"
		}
		return remote.NewRef("hf.co", repository, revision)
	}
	name := strings.TrimPrefix(s, "oci://")
	host, _, ok := strings.Cut(name, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return remote.ParseRef(name)
	}
	if !ok && strings.HasPrefix(name, "sha256:") || !plausible.MatchString(name) {
		return remote.Ref{}, fmt.Errorf("%.300q is not a reference: REGISTRY/REPOSITORY[:TAG][@DIGEST], in lower case: %w", s, errdefs.ErrInvalidArgument)
	}
	if ok {
		return remote.Ref{}, fmt.Errorf("reference %.300q does not name a registry; write for example docker.io/%[2]s or ghcr.io/%[2]s: %[3]w", s, truncate(name), errdefs.ErrInvalidArgument)
	}
	return remote.Ref{}, fmt.Errorf("reference %.300q does not name a registry; write for example registry.ollama.ai/library/%[2]s or docker.io/ai/%[2]s: %[3]w",
		s, truncate(name), errdefs.ErrInvalidArgument)
}

// plausible matches what would be a reference if a registry were before it.
var plausible = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9._-]+)?(@[a-z0-9]+:[0-9a-f]+)?$`)

// truncate cuts what is too long to be a name in a message.
func truncate(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}
