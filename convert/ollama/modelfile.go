package ollama

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/convert"
)

// A modelfile is written command by command. Text from outside cannot become another command: it is
// quoted, or replaced by a comment.
// https://github.com/ollama/ollama/blob/v0.17.4/docs/modelfile.mdx
type modelfile struct{ buf bytes.Buffer }

func newModelfile() *modelfile {
	mf := &modelfile{}
	mf.buf.WriteString("# Modelfile made from the layers of an Ollama model.\n")
	return mf
}

func (mf *modelfile) bytes() []byte { return mf.buf.Bytes() }

// line writes a command with an argument that needs no quotes.
func (mf *modelfile) line(command, arg string) {
	fmt.Fprintf(&mf.buf, "%s %s\n", command, arg)
}

// leftOut writes a comment for a command that cannot be written.
func (mf *modelfile) leftOut(command, path string) {
	fmt.Fprintf(&mf.buf, "# %s is left out; see %s\n", command, path)
}

// text writes a command with the text of the file at path, unless it is empty.
func (mf *modelfile) text(command, path, text string) {
	if text == "" {
		return
	}
	q, ok := quote(text)
	if !ok {
		mf.leftOut(command, path)
		return
	}
	mf.line(command, q)
}

// quote returns s as an argument; ok is false if the syntax cannot express it.
func quote(s string) (q string, ok bool) {
	odd := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, odd) {
		return "", false
	}
	plain := !strings.Contains(s, "\n") && strings.TrimSpace(s) == s && !strings.HasPrefix(s, `"`)
	switch {
	case plain:
		return s, true
	case !strings.Contains(s, `"`):
		return `"` + s + `"`, true
	case strings.Contains(s, `"""`), strings.HasPrefix(s, `"`), strings.HasSuffix(s, `"`):
		return "", false
	}
	return `"""` + s + `"""`, true
}

var paramKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)

// params writes the parameters, sorted by key; a list has a line for each element.
func (mf *modelfile) params(path string, params map[string]json.RawMessage) {
	for _, k := range slices.Sorted(maps.Keys(params)) {
		values, ok := paramValues(params[k])
		if !paramKey.MatchString(k) || !ok {
			mf.leftOut("PARAMETER", path)
			continue
		}
		for _, v := range values {
			mf.line("PARAMETER", k+" "+v)
		}
	}
}

// paramValues returns the arguments of a value: a string, number or boolean, or a list of them.
func paramValues(raw json.RawMessage) (values []string, ok bool) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		list = []json.RawMessage{raw}
	}
	for _, r := range list {
		switch c := r[0]; {
		case c == '"':
			var s string
			if err := json.Unmarshal(r, &s); err != nil {
				return nil, false
			}
			q, ok := quote(s)
			if !ok || s == "" {
				return nil, false
			}
			values = append(values, q)
		case c == '{', c == '[', c == 'n':
			return nil, false
		default: // a number or a boolean
			values = append(values, string(r))
		}
	}
	return values, true
}

// messages writes the messages; it returns false if text is not a list of messages.
func (mf *modelfile) messages(path string, text []byte) bool {
	// An object around the list, because the strict parser requires one.
	o, err := convert.ParseObject(slices.Concat([]byte(`{"messages":`), text, []byte(`}`)))
	if err != nil {
		return false
	}
	list := o.Objects("messages")
	if o.Err() != nil {
		return false
	}
	for _, m := range list {
		role, content := m.String("role"), m.String("content")
		q, ok := quote(content)
		if !slices.Contains([]string{"system", "user", "assistant"}, role) || !ok || content == "" {
			mf.leftOut("MESSAGE", path)
			continue
		}
		mf.line("MESSAGE", role+" "+q)
	}
	return true
}
