package mediatype

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// maxParams limits a media type with parameters, in bytes: it has room for a tensor name of 4096
// bytes in percent-encoding.
const maxParams = 4*4096 + 1<<10

// Params returns the parameters of a media type, with keys in lower case. It returns
// errdefs.ErrInvalidArgument for invalid parameters.
//
// In addition to the syntax of mime.ParseMediaType it accepts unquoted values with separators, as
// in "shape=1,2,3", which Ollama's manifests have. A value ends at the semicolon. A duplicate
// parameter and an unclosed quote are errors.
// https://github.com/ollama/ollama/blob/v0.6.8/server/internal/manifest/manifest.go
func Params(mediaType string) (map[string]string, error) {
	if len(mediaType) > maxParams {
		return nil, fmt.Errorf("media type of %d bytes, more than %d: %w", len(mediaType), maxParams, errdefs.ErrInvalidArgument)
	}
	_, rest, _ := strings.Cut(mediaType, ";")
	params := map[string]string{}
	for {
		rest = strings.TrimLeft(rest, "; \t")
		if rest == "" {
			return params, nil
		}
		i := strings.IndexAny(rest, "=;")
		if i < 0 || rest[i] == ';' {
			return nil, fmt.Errorf("media type parameter %.100q has no value: %w", rest, errdefs.ErrInvalidArgument)
		}
		key := strings.ToLower(strings.TrimSpace(rest[:i]))
		value, tail, err := cutValue(rest[i+1:])
		if err != nil {
			return nil, fmt.Errorf("media type parameter %.100q: %w: %w", key, err, errdefs.ErrInvalidArgument)
		}
		rest = tail
		if plain, ok := strings.CutSuffix(key, "*"); ok {
			key = plain
			if value, err = decodeExtended(value); err != nil {
				return nil, fmt.Errorf("media type parameter %.100q: %w: %w", key, err, errdefs.ErrInvalidArgument)
			}
		}
		if !utf8.ValidString(value) {
			return nil, fmt.Errorf("media type parameter %.100q is not UTF-8: %w", key, errdefs.ErrInvalidArgument)
		}
		if _, ok := params[key]; ok {
			return nil, fmt.Errorf("media type parameter %.100q twice: %w", key, errdefs.ErrInvalidArgument)
		}
		params[key] = value
	}
}

// cutValue returns the value at the start of s and the rest.
func cutValue(s string) (value, rest string, err error) {
	s = strings.TrimLeft(s, " \t")
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		return strings.TrimSpace(value), rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			rest = strings.TrimLeft(s[i+1:], " \t")
			if rest != "" && rest[0] != ';' {
				return "", "", fmt.Errorf("%.20q after the quotes", rest)
			}
			return b.String(), rest, nil
		case '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("quotes are not closed")
}

// decodeExtended decodes a value with charset and percent-encoding.
// https://www.rfc-editor.org/rfc/rfc8187#section-3.2
func decodeExtended(s string) (string, error) {
	charset, rest, ok := strings.Cut(s, "'")
	_, value, ok2 := strings.Cut(rest, "'")
	if !ok || !ok2 || !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return "", fmt.Errorf("%.100q is not UTF-8 in percent-encoding", s)
	}
	return url.PathUnescape(value)
}
