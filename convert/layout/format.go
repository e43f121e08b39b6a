package layout

import (
	"context"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
)

// Scheme precedes the directory of a layout in a name.
const Scheme = "oci:"

// Format opens models in OCI layouts.
var Format = format.Format{Place: &format.Place{Takes: takes, Open: open}}

func takes(n format.Name) bool {
	if strings.HasPrefix(n.Text, Scheme) {
		return !strings.HasPrefix(n.Text, Scheme+"//") // a reference with a scheme
	}
	return n.IsPath && Is(n.Text)
}

// Split splits DIR:TAG.
func Split(s string) (dir, tag string) {
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		return s[:i], s[i+1:]
	}
	return s, ""
}

func open(_ context.Context, _ format.Settings, name string) (*format.Source, error) {
	dir, tag := name, ""
	if rest, ok := strings.CutPrefix(name, Scheme); ok {
		dir, tag = Split(rest)
	}
	l, err := Open(dir, tag)
	if err != nil {
		return nil, err
	}
	return &format.Source{Artifact: l, Fetcher: l, Close: l.Close}, nil
}
