package convert

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Choice selects files of a model: those that an Include matches, or all if there is no Include, except those that an
// Exclude matches. Patterns are those of the client of the Hub: * matches any text, slashes too, ? any character, [abc]
// one of a set, [!abc] one outside of it, and a pattern that ends in / matches everything below the directory.
// https://huggingface.co/docs/huggingface_hub/v1.2.0/en/guides/download#filter-files-to-download
type Choice struct{ Include, Exclude []string }

// Of returns the model of the chosen files of m. It is a different model with an origin of its own: files without
// packaging, whose digest covers the origin of m and the chosen files. The documents of m are not kept, and if weights
// are left out, neither is what the config says of all of them: the headers of the chosen ones say it. It returns
// errdefs.ErrInvalidArgument for an invalid pattern, errdefs.ErrNotFound if no file is chosen, and
// errdefs.ErrNotImplemented if the files of an archive are known only after it is unpacked.
func (c Choice) Of(m *Model) (*Model, error) {
	if len(c.Include)+len(c.Exclude) == 0 {
		return m, nil
	}
	include, err := patterns(c.Include)
	if err != nil {
		return nil, err
	}
	exclude, err := patterns(c.Exclude)
	if err != nil {
		return nil, err
	}
	if len(m.Table.Unpacks) > 0 {
		return nil, fmt.Errorf("files cannot be chosen from an archive that is unpacked before they are known: %w", errdefs.ErrNotImplemented)
	}
	out := &Model{Config: m.Config, ContextLength: m.ContextLength, Runner: m.Runner, Table: filetable.Table{Version: filetable.Version}}
	out.Config.ModelFS = ModelFS{}
	t := &out.Table
	above, blobs := map[string]bool{}, map[digest.Digest]bool{}
	for _, f := range m.Table.Seen() {
		if f.Type == filetable.TypeDir || len(include) > 0 && !anyMatch(include, f.Path) || anyMatch(exclude, f.Path) {
			if k := &out.Config.Config; f.Type == filetable.TypeReg && KindByPath(f.Path) == mediatype.KindWeight {
				k.Format, k.ParamSize, k.Precision, k.Quantization = "", "", "", ""
			}
			continue
		}
		f.Layer = 0
		t.Files = append(t.Files, f)
		for dir := path.Dir(f.Path); !above[dir]; dir = path.Dir(dir) {
			above[dir] = true
		}
		if f.Source != nil {
			for _, part := range append([]filetable.Source{*f.Source}, f.Source.Parts...) {
				blobs[part.Blob] = true
			}
		}
	}
	if len(t.Files) == 0 {
		return nil, fmt.Errorf("no file matches: %w", errdefs.ErrNotFound)
	}
	for _, f := range m.Table.Seen() {
		if f.Type == filetable.TypeDir && above[f.Path] {
			f.Layer = 0
			t.Files = append(t.Files, f)
		}
	}
	slices.SortStableFunc(t.Files, func(a, b filetable.File) int { return strings.Compare(a.Path, b.Path) })
	for i, b := range m.Table.Blobs {
		if blobs[b.Digest] {
			b.Layer = len(t.Blobs)
			t.Blobs, out.Layers = append(t.Blobs, b), append(out.Layers, m.Layers[i])
		}
	}
	of := m.Table.Origin
	of.Prefix = ""
	p, err := json.Marshal(struct {
		Of    filetable.Origin `json:"of"`
		Files []filetable.File `json:"files"`
	}{of, t.Files})
	t.Origin = filetable.Origin{Format: string(mediatype.FormatFiles), Digest: digest.FromBytes(p), Mapping: MappingVersion, Prefix: m.Table.Origin.Prefix}
	return out, err
}

func anyMatch(all []*regexp.Regexp, name string) bool {
	return slices.ContainsFunc(all, func(re *regexp.Regexp) bool { return re.MatchString(name) })
}

// class is a set of characters in a pattern. A ] that comes first is one of them.
var class = regexp.MustCompile(`^\[(!?)(\]?[^]]*)\]`)

// patterns compiles patterns.
func patterns(all []string) (list []*regexp.Regexp, err error) {
	for _, p := range all {
		var b strings.Builder
		rest := p
		if strings.HasSuffix(p, "/") {
			rest += "*"
		}
		for rest != "" {
			n := 1
			switch set := class.FindStringSubmatch(rest); {
			case rest[0] == '*':
				b.WriteString(".*")
			case rest[0] == '?':
				b.WriteString(".")
			case set != nil:
				n = len(set[0])
				b.WriteString("[" + map[bool]string{true: "^"}[set[1] != ""] + escape.Replace(set[2]) + "]")
			default:
				_, n = utf8.DecodeRuneInString(rest)
				b.WriteString(regexp.QuoteMeta(rest[:n]))
			}
			rest = rest[n:]
		}
		re, err := regexp.Compile("(?s)^" + b.String() + "$")
		if err != nil || p == "" {
			return nil, fmt.Errorf("%.300q is not a pattern of files: %w", p, errdefs.ErrInvalidArgument)
		}
		list = append(list, re)
	}
	return list, nil
}

// escape quotes the characters of a class in a regular expression, except those of ranges.
var escape = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`)
