package admin

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// ParseRef parses a reference that a person wrote. The scheme "oci://" is allowed. A name
// without a registry is refused with errdefs.ErrInvalidArgument: "llama3.2" is one thing to
// Docker and another to Ollama. The URL of a carton is "carton+https://…".
func ParseRef(s string) (remote.Ref, error) {
	if strings.HasPrefix(s, "carton+") {
		return remote.ParseRef(s)
	}
	name := strings.TrimPrefix(s, "oci://")
	host, _, ok := strings.Cut(name, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return remote.Ref{}, fmt.Errorf("reference %.300q does not name a registry; write for example docker.io/%[2]s or registry.ollama.ai/library/%[2]s: %w",
			s, truncate(name), errdefs.ErrInvalidArgument)
	}
	return remote.ParseRef(name)
}

// CheckName returns errdefs.ErrInvalidArgument for what is neither a reference nor a digest, nor
// the beginning of one that is long enough.
func CheckName(s string) error {
	if _, ok := digestPrefix(s); ok {
		return nil
	}
	_, err := ParseRef(s)
	return err
}

// digestPrefix returns the hex digits of a digest or of the beginning of one.
func digestPrefix(s string) (hex string, ok bool) {
	hex = strings.TrimPrefix(s, "sha256:")
	return hex, len(hex) >= minShortDigest && len(hex) <= 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// truncate cuts what is too long to be a name in a message.
func truncate(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// stored returns r in the form that store.Image.Refs have: with the digest or the tag, not
// both, and of a URL the name.
func stored(r remote.Ref) string {
	if r.URL != "" {
		return r.Name()
	}
	if r.Digest != "" {
		r.Tag = ""
	}
	return r.String()
}
