package carton

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// A table is an untrusted TOML table, read key by key. Keys are case-sensitive. Keys that are not
// requested are ignored. The first missing value, or value of a wrong type, is recorded as the
// error of all tables of a document.
type table struct {
	path string
	m    map[string]any
	err  *error
}

// parseTable parses a document of at most limit bytes.
func parseTable(name string, p []byte, limit int) (table, error) {
	if len(p) > limit {
		return table{}, invalid("%s of %d bytes, more than %d", name, len(p), limit)
	}
	if err := checkKeys(p); err != nil {
		return table{}, fmt.Errorf("%s: %w", name, err)
	}
	t := table{path: name, err: new(error)}
	if err := toml.Unmarshal(p, &t.m); err != nil {
		return table{}, invalid("%s: %w", name, err)
	}
	return t, nil
}

// maxKeys limits the keys of a document, where each part of a dotted key counts. A part is a nested
// table, so a short document can become a large number of them, and the decoder compares each key
// with all others: this many take it about 3 seconds.
const maxKeys = 20_000

// checkKeys refuses a document with more than maxKeys keys. Invalid TOML is reported by the decoder.
func checkKeys(p []byte) error {
	var parser unstable.Parser
	parser.Reset(p)
	for keys := 0; parser.NextExpression(); {
		if keys += countKeys(parser.Expression()); keys > maxKeys {
			return invalid("more than %d keys or parts of keys", maxKeys)
		}
	}
	return nil
}

// countKeys returns the number of parts of the keys of a node.
func countKeys(n *unstable.Node) (count int) {
	switch n.Kind {
	case unstable.KeyValue, unstable.Table, unstable.ArrayTable:
		for key := n.Key(); key.Next(); {
			count++
		}
		if n.Kind == unstable.KeyValue {
			count += countKeys(n.Value())
		}
	case unstable.Array, unstable.InlineTable:
		for children := n.Children(); children.Next(); {
			count += countKeys(children.Node())
		}
	}
	return count
}

func (t table) fail(key, format string, args ...any) {
	if *t.err == nil {
		*t.err = fmt.Errorf("%s: %s: %s: %w", t.path, key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
}

// get returns the value of a key if it has the type T, otherwise the zero value.
func get[T any](t table, key string, required bool) T {
	v, ok := t.m[key]
	x, typed := v.(T)
	switch {
	case !ok && required:
		t.fail(key, "is missing")
	case ok && !typed:
		t.fail(key, "is not %s", tomlType[T]())
	}
	return x
}

// tomlType returns TOML's name of a type.
func tomlType[T any]() string {
	switch any(*new(T)).(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case []any:
		return "an array"
	}
	return "a table"
}

// list returns an array of values of the type T.
func list[T any](t table, key string, required bool) []T {
	var all []T
	for i, v := range get[[]any](t, key, required) {
		x, ok := v.(T)
		if !ok {
			t.fail(key, "value %d is not %s", i, tomlType[T]())
		}
		all = append(all, x)
	}
	return all
}

// version checks the version of a document.
func (t table) version(key string, supported int64) {
	switch v := get[int64](t, key, true); {
	case v < 0:
		t.fail(key, "is negative")
	case *t.err == nil && v != supported:
		*t.err = fmt.Errorf("unsupported %s %s %d: %w", t.path, key, v, errdefs.ErrNotImplemented)
	}
}

// table returns a nested table.
func (t table) table(key string) table {
	return table{path: t.path + ": " + key, m: get[map[string]any](t, key, true), err: t.err}
}
