package resolve

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// ParseRef parses a reference typed by a user: one of a registry, for which the scheme "oci://" is
// allowed, one with the prefix of a format, the page of a model on the web, or the URL of an archive
// with the name of its format as scheme. It returns errdefs.ErrInvalidArgument for a name without a
// registry: "llama3.2" has different meanings for Docker and Ollama.
func ParseRef(s string) (remote.Ref, error) {
	page, err := formats.All().OfPage(s)
	switch {
	case err != nil:
		return remote.Ref{}, fmt.Errorf("%.300q is %w", s, err)
	case page != "":
		return remote.ParseRef(page)
	case strings.HasPrefix(s, "https://"), strings.HasPrefix(s, "http://"):
		return remote.Ref{}, fmt.Errorf("%.300q is a URL; a reference is REGISTRY/REPOSITORY[:TAG][@DIGEST]: %w", s, errdefs.ErrInvalidArgument)
	}
	for _, f := range formats.All() {
		if f.Archives != nil && strings.HasPrefix(s, string(f.Name)+"+") {
			return remote.ParseRef(s)
		}
		if rest, ok := strings.CutPrefix(s, f.Prefix); ok && f.Ref != nil {
			return f.Ref(rest)
		}
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

// plausible matches a name that would be a reference with a registry before it.
var plausible = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9._-]+)?(@[a-z0-9]+:[0-9a-f]+)?$`)

// truncate shortens a name that is too long for a message.
func truncate(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}
