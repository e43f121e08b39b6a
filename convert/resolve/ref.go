package resolve

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// ParseRef parses a reference typed by a user: one of a registry, for which the schemes of other programs are allowed,
// one with the prefix of a format, the page of a model on the web, or the URL of an archive with the name of its format
// as scheme. It returns errdefs.ErrInvalidArgument for a name without a registry: "llama3.2" has different meanings for
// Docker and Ollama.
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
	name := s
	if scheme, rest, ok := strings.Cut(s, "://"); ok && slices.Contains(schemes, scheme) {
		name = rest
	} else if ok && !strings.ContainsAny(scheme, "/+") {
		return remote.Ref{}, fmt.Errorf("%.300q has the scheme %.20s; a reference is REGISTRY/REPOSITORY[:TAG][@DIGEST]: %w", s, scheme, errdefs.ErrInvalidArgument)
	}
	host, _, ok := strings.Cut(name, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		ref, err := remote.ParseRef(name)
		if why := malformed(name); err != nil && why != "" {
			err = fmt.Errorf("reference %.300q %s: %w", s, why, errdefs.ErrInvalidArgument)
		}
		for _, f := range formats.All() {
			if f.Ref != nil && strings.HasPrefix(ref.Host, f.Prefix) { // what it is normalised to means something else
				return remote.Ref{}, fmt.Errorf("reference %.300q: the name of the host is that of a format: %w", s, errdefs.ErrInvalidArgument)
			}
		}
		return ref, err
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

// schemes are what other programs write before references: Helm and others, Docker and skopeo, and KServe.
// https://kserve.github.io/website/docs/model-serving/storage/providers/oci
var schemes = []string{"oci", "docker", "oci+native"}

// malformed returns what is wrong with a reference that has a registry and cannot be read, or "".
func malformed(name string) string {
	name, d, digested := strings.Cut(name, "@")
	_, err := verify.ParseDigest(d)
	switch {
	case digested && err != nil:
		return "has no digest after @: sha256: and 64 digits of 0-9 and a-f"
	case strings.HasSuffix(name, ":"):
		return "ends with a colon; write a tag after it, or nothing"
	case strings.HasSuffix(name, "/"):
		return "ends with a slash"
	}
	return ""
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
