package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Limits of untrusted JSON documents. A manifest of 8 MiB has fewer than a million values.
const (
	maxJSONDepth  = 64
	maxJSONTokens = 1 << 20
)

// An Object is an untrusted JSON object, read key by key.
//
// Keys are compared exactly, and a key twice in one object is an error: two readers could interpret one signed document
// differently. Of documents that containerd reads too, so are keys that differ from a known one, or from each other, in
// letter case only (keys). Unused keys are ignored. A value of another type than requested reads as absent, and Err
// reports the first such value; null is absent too.
type Object struct {
	path   string
	fields map[string]json.RawMessage
	err    *error
}

// ParseObject parses a JSON object. It returns errdefs.ErrInvalidArgument if p is not a JSON
// object, has a duplicate key, more than 64 levels of nesting, or data after the object.
func ParseObject(p []byte) (*Object, error) { return parseObject(p, nil) }

// parseObject is ParseObject for a document with known keys.
func parseObject(p []byte, k *keys) (*Object, error) {
	if err := checkJSON(p, k); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	o := &Object{err: new(error)}
	if err := json.Unmarshal(p, &o.fields); err != nil || o.fields == nil {
		return nil, fmt.Errorf("not a JSON object: %w", errdefs.ErrInvalidArgument)
	}
	return o, nil
}

// A level is an open object or list.
type level struct {
	keys *keys           // of the object, or of the objects in the list; nil if unknown
	seen map[string]bool // the keys so far, folded if they are known; nil for a list
}

// checkJSON checks all of p, so that decoding it is bounded and unambiguous. k has the known keys of the object; nil
// for none.
func checkJSON(p []byte, k *keys) error {
	if !utf8.Valid(p) {
		return errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	var open []level
	next, isKey := k, false // the keys of the next value; whether the next token is a key
	for n := 0; ; n++ {
		if n > maxJSONTokens {
			return fmt.Errorf("more than %d JSON tokens", maxJSONTokens)
		}
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", eof(err))
		}
		switch d, _ := t.(json.Delim); d {
		case '{':
			open = append(open, level{next, map[string]bool{}})
		case '[':
			open = append(open, level{next, nil})
		case '}', ']':
			open = open[:len(open)-1]
		default:
			if isKey {
				if next, err = open[len(open)-1].key(t.(string)); err != nil {
					return err
				}
				isKey = false
				continue
			}
		}
		if len(open) > maxJSONDepth {
			return fmt.Errorf("JSON nested deeper than %d levels", maxJSONDepth)
		}
		if len(open) == 0 {
			break
		}
		in := open[len(open)-1]
		isKey, next = in.seen != nil, in.keys
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("data after the JSON document")
	}
	return nil
}

// key checks the next key of an object, and returns the keys of its value.
func (l level) key(k string) (*keys, error) {
	name, next := k, (*keys)(nil)
	if l.keys != nil {
		name, next = fold(k), l.keys.of[k]
		if exact, ok := l.keys.names[name]; ok && exact != k {
			return nil, fmt.Errorf("JSON key %q, which some readers take for %q", k, exact)
		}
	}
	if l.seen[name] {
		return nil, fmt.Errorf("JSON key %q twice in one object", k)
	}
	l.seen[name] = true
	return next, nil
}

func eof(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Err returns an error for the first value of an unexpected type, in o and all objects read from
// it.
func (o *Object) Err() error { return *o.err }

// Has reports whether the object has the key with a value other than null.
func (o *Object) Has(key string) bool {
	v, ok := o.fields[key]
	return ok && string(v) != "null"
}

// get decodes the first present value of keys into v and reports whether it did.
func (o *Object) get(v any, keys ...string) bool {
	for _, k := range keys {
		if !o.Has(k) {
			continue
		}
		if err := json.Unmarshal(o.fields[k], v); err != nil {
			o.fail(k, err)
			return false
		}
		return true
	}
	return false
}

// get returns the first present value of keys; the zero value if there is none, or one of another
// type.
func get[T any](o *Object, keys ...string) (v T) {
	if !o.get(&v, keys...) {
		var none T
		return none
	}
	return v
}

func (o *Object) fail(key string, err error) {
	if *o.err == nil {
		*o.err = fmt.Errorf("%s%s: %w: %w", o.path, key, err, errdefs.ErrInvalidArgument)
	}
}

// String returns the string at the first present key, or "".
func (o *Object) String(keys ...string) string {
	return get[string](o, keys...)
}

// Strings returns the list of strings at the first present key, or nil.
func (o *Object) Strings(keys ...string) []string {
	return get[[]string](o, keys...)
}

// Map returns the object of strings at the first present key, or nil.
func (o *Object) Map(keys ...string) map[string]string {
	return get[map[string]string](o, keys...)
}

// Bytes returns the decoded base64 string at key, or nil.
func (o *Object) Bytes(key string) []byte {
	return get[[]byte](o, key)
}

// Bool returns the boolean at the first present key, and whether there is one.
func (o *Object) Bool(keys ...string) (v, ok bool) {
	ok = o.get(&v, keys...)
	return v, ok
}

// Int returns the integer at key, and whether there is one.
func (o *Object) Int(key string) (int64, bool) {
	var n int64
	ok := o.get(&n, key)
	return n, ok
}

// Number returns the text of the number at key, or "".
func (o *Object) Number(key string) string {
	var n json.Number
	if !o.Has(key) || o.fields[key][0] == '"' || !o.get(&n, key) {
		return ""
	}
	return n.String()
}

// Raw returns the JSON at key, or nil.
func (o *Object) Raw(key string) json.RawMessage {
	if !o.Has(key) {
		return nil
	}
	return o.fields[key]
}

// Object returns the object at key, or an empty one.
func (o *Object) Object(key string) *Object {
	sub := &Object{path: o.path + key + ".", err: o.err}
	o.get(&sub.fields, key)
	return sub
}

// Objects returns the list of objects at key, or nil.
func (o *Object) Objects(key string) []*Object {
	raw := o.list(key)
	list := make([]*Object, 0, len(raw))
	for i, r := range raw {
		sub := o.element(key, i, r)
		if sub == nil {
			return nil
		}
		list = append(list, sub)
	}
	return list
}

// list returns the elements of the list at key, or nil.
func (o *Object) list(key string) (raw []json.RawMessage) {
	o.get(&raw, key)
	return raw
}

// element returns element i of the list at key, or nil if it is not an object.
func (o *Object) element(key string, i int, raw json.RawMessage) *Object {
	sub := &Object{path: fmt.Sprintf("%s%s[%d].", o.path, key, i), err: o.err}
	if err := json.Unmarshal(raw, &sub.fields); err != nil || sub.fields == nil {
		o.fail(fmt.Sprintf("%s[%d]", key, i), errors.New("not an object"))
		return nil
	}
	return sub
}

// Keys returns the keys of the object in random order.
func (o *Object) Keys() []string {
	return slices.Collect(maps.Keys(o.fields))
}
