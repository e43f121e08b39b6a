package setup

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// A span is a range of bytes in a text.
type span struct{ from, to int }

// importsAt is where the imports are in the text of a configuration.
type importsAt struct {
	values []string
	spans  []span // of the values, with their quotes
	list   int    // after the "["; 0 if there is no list
	insert int    // where a line could be inserted: before the first table, after "version"
}

// findImports finds the imports in a configuration of containerd.
func findImports(text string) (importsAt, error) {
	var at importsAt
	var p unstable.Parser
	b := []byte(text)
	p.Reset(b)
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.Table || e.Kind == unstable.ArrayTable {
			break
		}
		if e.Kind != unstable.KeyValue {
			continue
		}
		key := e.Key()
		key.Next()
		switch name := key.Node(); {
		case !key.IsLast():
		case string(name.Data) == "version":
			at.insert = endOfLine(text, int(name.Raw.Offset))
		case string(name.Data) == "imports" && e.Value().Kind == unstable.Array:
			after := int(name.Raw.Offset + name.Raw.Length)
			at.list = after + strings.IndexByte(text[after:], '[') + 1
			for it := e.Value().Children(); it.Next(); {
				if n := it.Node(); n.Kind == unstable.String {
					at.values = append(at.values, string(n.Data))
					at.spans = append(at.spans, span{int(n.Raw.Offset), int(n.Raw.Offset + n.Raw.Length)})
				}
			}
		}
	}
	if err := p.Error(); err != nil {
		return importsAt{}, fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return at, nil
}

// endOfLine returns the position after the line that has the byte at i.
func endOfLine(text string, i int) int {
	if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
		return i + n + 1
	}
	return len(text)
}

// globDirs returns the directories whose drop-ins are all imported by a configuration in dir.
func (at importsAt) globDirs(dir string) []string {
	var dirs []string
	for _, v := range at.values {
		if !filepath.IsAbs(v) {
			v = filepath.Join(dir, v)
		}
		if filepath.Base(v) == "*.toml" && !strings.Contains(filepath.Dir(v), "*") {
			dirs = append(dirs, filepath.Dir(v))
		}
	}
	return dirs
}

// addImport returns a configuration with one additional import, the last one, which has the highest
// precedence. Everything else, including comments, stays as it is. It returns
// errdefs.ErrFailedPrecondition for a configuration that cannot be read or edited.
func addImport(text, value string) (string, error) {
	at, err := findImports(text)
	if err != nil {
		return "", err
	}
	quoted := fmt.Sprintf("%q", value)
	var fresh string
	switch {
	case slices.Contains(at.values, value):
		return text, nil
	case at.list > 0 && len(at.spans) > 0:
		end := at.spans[len(at.spans)-1].to
		fresh = text[:end] + ", " + quoted + text[end:]
	case at.list > 0:
		fresh = text[:at.list] + quoted + text[at.list:]
	default:
		before := text[:at.insert]
		if before != "" && !strings.HasSuffix(before, "\n") {
			before += "\n"
		}
		fresh = before + "imports = [" + quoted + "]\n" + text[at.insert:]
	}
	return fresh, sameBut(text, fresh, append(slices.Clone(at.values), value))
}

// dropImport is the reverse of addImport. It keeps an empty list.
func dropImport(text, value string) (string, error) {
	at, err := findImports(text)
	if err != nil {
		return "", err
	}
	i := slices.Index(at.values, value)
	if i < 0 {
		return text, nil
	}
	s := at.spans[i]
	switch {
	case i > 0:
		s.from = at.spans[i-1].to + strings.IndexByte(text[at.spans[i-1].to:], ',')
		if strings.Contains(text[s.from:s.to], "#") { // a comment between them stays
			s.from = at.spans[i].from
			s.to = skipComma(text, s.to)
		}
	default:
		s.to = skipComma(text, s.to)
	}
	fresh := text[:s.from] + text[s.to:]
	return fresh, sameBut(text, fresh, slices.Delete(slices.Clone(at.values), i, i+1))
}

// skipComma returns the position after the comma that follows on the same line, if any, and the
// spaces after it.
func skipComma(text string, i int) int {
	rest := strings.TrimLeft(text[i:], " \t")
	if !strings.HasPrefix(rest, ",") {
		return i
	}
	return len(text) - len(strings.TrimLeft(rest[1:], " \t"))
}

// sameBut returns errdefs.ErrFailedPrecondition unless two configurations are equal except for
// their imports.
func sameBut(old, fresh string, imports []string) error {
	var was, is map[string]any
	if err := toml.Unmarshal([]byte(old), &was); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err := toml.Unmarshal([]byte(fresh), &is); err != nil {
		return fmt.Errorf("its imports cannot be edited: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	got, _ := is["imports"].([]any)
	var names []string
	for _, v := range got {
		s, _ := v.(string)
		names = append(names, s)
	}
	delete(was, "imports")
	delete(is, "imports")
	if len(names)+len(imports) > 0 && !slices.Equal(names, imports) || !reflect.DeepEqual(was, is) {
		return fmt.Errorf("its imports cannot be edited without changing more: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}
