package meta

import (
	"encoding/hex"
	"time"

	"github.com/opencontainers/go-digest"
)

// This file decodes the fields that the index needs, in exactly the form that put writes: there can
// be millions of records when a database is opened, and general JSON decoding would take most of
// that time. Records in another form are decoded as JSON, with the same result.

// counted is the part of an object that the index needs.
type counted struct {
	key  key
	size int64 // bytes
}

func decodeCounted(k, p []byte) (counted, error) {
	p, err := unseal(bucketObjects, k, p)
	if err != nil {
		return counted{}, err
	}
	if size, ok := plainSize(p); ok {
		return counted{keyOf(k), size}, nil
	}
	o, err := parse[Object](bucketObjects, k, p)
	return counted{keyOf(k), o.Size}, err
}

// needing is a table with the keys of its objects. Table.Objects is nil.
type needing struct {
	Table
	key     key
	objects []key
}

func newNeeding(d digest.Digest, t Table) needing {
	n := needing{t, keyOf(d), make([]key, 0, len(t.Objects)+1)}
	for _, o := range t.Objects {
		n.objects = append(n.objects, keyOf(o))
	}
	n.Objects = nil
	return n
}

func decodeNeeding(k, p []byte) (needing, error) {
	p, err := unseal(bucketTables, k, p)
	if err != nil {
		return needing{}, err
	}
	if t, objects, ok := plainTable(p); ok {
		return needing{t, keyOf(k), objects}, nil
	}
	t, err := parse[Table](bucketTables, k, p)
	return newNeeding(digest.Digest(k), t), err
}

// plainSize returns Object.Size of a record.
func plainSize(p []byte) (size int64, ok bool) {
	s := plain{p, true}
	s.want(`{"size":`)
	size = s.number()
	s.want(`,"used":`)
	s.time()
	if s.skip(`,"private":[`) {
		for s.text(); s.skip(`,`); s.text() {
		}
		s.want(`]`)
	}
	s.want(`}`)
	return size, s.ends()
}

// plainTable returns a table without Objects, and their keys.
func plainTable(p []byte) (t Table, objects []key, ok bool) {
	s := plain{p, true}
	s.want(`{"objects":[`)
	const each = len(`"sha256:",`) + 2*len(key{})
	objects = make([]key, 0, len(p)/each+1) // one more for the table itself
	for objects = append(objects, s.digest()); s.skip(`,`); {
		objects = append(objects, s.digest())
	}
	s.want(`],"logical":`)
	t.Logical = s.number()
	s.want(`,"complete":`)
	if t.Complete = s.skip(`true`); !t.Complete {
		s.want(`false`)
	}
	t.Partly = s.skip(`,"partly":true`)
	t.Broken = s.skip(`,"broken":true`)
	s.want(`}`)
	return t, objects, s.ends()
}

// plain is the rest of a JSON text without spaces; ok reports whether it had the expected form so
// far.
type plain struct {
	p  []byte
	ok bool
}

// ends reports whether all of the text had the expected form.
func (s *plain) ends() bool { return s.ok && len(s.p) == 0 }

// skip skips a literal if it is next.
func (s *plain) skip(literal string) bool {
	if !s.ok || len(s.p) < len(literal) || string(s.p[:len(literal)]) != literal {
		return false
	}
	s.p = s.p[len(literal):]
	return true
}

// want skips a literal that must be next.
func (s *plain) want(literal string) { s.ok = s.skip(literal) }

// number returns a natural number.
func (s *plain) number() (n int64) {
	const most = 18 // digits that fit into int64
	i := 0
	for ; i < len(s.p) && s.p[i] >= '0' && s.p[i] <= '9'; i++ {
		if i == most || i == 1 && n == 0 {
			s.ok = false
			return 0
		}
		n = 10*n + int64(s.p[i]-'0')
	}
	s.ok = s.ok && i > 0
	s.p = s.p[i:]
	return n
}

// text returns an ASCII string without escapes.
func (s *plain) text() []byte {
	s.want(`"`)
	for i, c := range s.p {
		switch {
		case c == '"':
			in := s.p[:i]
			s.p = s.p[i+1:]
			return in
		case c < ' ' || c > '~' || c == '\\':
			s.ok = false
			return nil
		}
	}
	s.ok = false
	return nil
}

// time skips a time.
func (s *plain) time() {
	var t time.Time
	if in := s.text(); !isUTC(in) && t.UnmarshalText(in) != nil {
		s.ok = false
	}
}

// isUTC reports whether a text is a time as put writes it. It does not know how many days a month has, so for the
// last days of a month it is false.
func isUTC(p []byte) bool {
	const form = "0000-00-00T00:00:00" // and perhaps a fraction, and Z
	if len(p) <= len(form) || p[len(p)-1] != 'Z' {
		return false
	}
	for i, c := range p[:len(form)] {
		if form[i] == '0' && (c < '0' || c > '9') || form[i] != '0' && c != form[i] {
			return false
		}
	}
	two := func(at int) byte { return 10*(p[at]-'0') + p[at+1] - '0' }
	month, day := two(5), two(8)
	if month < 1 || month > 12 || day < 1 || day > 28 || two(11) > 23 || two(14) > 59 || two(17) > 59 {
		return false
	}
	fraction := p[len(form) : len(p)-1]
	if len(fraction) > 0 && (len(fraction) == 1 || len(fraction) > 10 || fraction[0] != '.') {
		return false
	}
	for _, c := range fraction[min(1, len(fraction)):] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func (s *plain) digest() (k key) {
	s.want(`"sha256:`)
	if !s.ok || len(s.p) < 2*len(k) {
		s.ok = false
		return k
	}
	if _, err := hex.Decode(k[:], s.p[:2*len(k)]); err != nil {
		s.ok = false
	}
	s.p = s.p[2*len(k):]
	s.want(`"`)
	return k
}
