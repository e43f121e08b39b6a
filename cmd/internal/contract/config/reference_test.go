package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/manualtest"
)

// TestReference compares the configuration reference with the fields of Config; -update writes it.
func TestReference(t *testing.T) {
	var b strings.Builder
	writeTable(&b, "Top level", "", reflect.TypeFor[Config](), reflect.ValueOf(*Default()))
	if err := manualtest.Update("../../../../contrib/docs/configuration.md", "configuration", strings.TrimPrefix(b.String(), "\n"), *update); err != nil {
		t.Error(err)
	}
}

// writeTable writes a section with the keys of a table, called "log." in a file, and those of its
// nested tables. defaults is not valid for tables that the default configuration does not have.
func writeTable(b *strings.Builder, heading, prefix string, of reflect.Type, defaults reflect.Value) {
	var tables []reflect.StructField
	for f := range of.Fields() {
		if tomlName(f) == "-" {
			continue
		}
		if isTable(f.Type) {
			tables = append(tables, f)
			continue
		}
		if heading != "" {
			fmt.Fprintf(b, "\n## %s\n\n| key | type | default | meaning |\n|---|---|---|---|\n", heading)
			heading = ""
		}
		value := ""
		if defaults.IsValid() {
			value = "`" + literal(defaults.FieldByIndex(f.Index)) + "`"
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", prefix, tomlName(f), kind(f.Type), value, inline(f.Tag.Get("comment")))
	}
	for _, f := range tables {
		name := prefix + tomlName(f)
		comment := ""
		if c := f.Tag.Get("comment"); c != "" {
			comment = "\n\n" + inline(c)
		}
		if f.Type.Kind() == reflect.Slice {
			writeTable(b, "[["+name+"]]"+comment, name+".", f.Type.Elem(), reflect.Value{})
		} else {
			writeTable(b, "["+name+"]"+comment, name+".", f.Type, defaults.FieldByIndex(f.Index))
		}
	}
}

func isTable(t reflect.Type) bool {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Duration]()
}

func tomlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
	return name
}

// inline returns a comment as a table cell.
func inline(comment string) string {
	return strings.NewReplacer("\n", " ", "|", `\|`, "*", `\*`, "_", `\_`, "{", `\{`).Replace(comment)
}

// literal returns a value as written in a file.
func literal(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case string:
		return strconv.Quote(x)
	case []string:
		return "[]"
	case Size, Duration, Percent:
		return strconv.Quote(fmt.Sprint(x))
	default:
		return fmt.Sprint(x)
	}
}

// kind returns the type of a field as documented for a file.
func kind(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[Percent]():
		return "percentage"
	case reflect.TypeFor[[]string]():
		return "list of strings"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int:
		return "integer"
	}
	return "string"
}

var (
	tomlBlock = regexp.MustCompile("(?ms)^```toml\n(.*?)^```$")
	tomlFile  = regexp.MustCompile(`^# /etc/ballast/(config\.toml|conf\.d/[a-z0-9-]+\.toml)\n`)
)

// TestDocumentedSettings loads each example of the documentation as the file that it names in its first
// line: a reader copies it as it is.
func TestDocumentedSettings(t *testing.T) {
	pages, err := filepath.Glob("../../../../contrib/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range pages {
		p, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range tomlBlock.FindAllStringSubmatch(string(p), -1) {
			n++
			name := tomlFile.FindStringSubmatch(m[1])
			if name == nil {
				t.Errorf("%s: an example that does not name its file in the first line:\n%s", page, m[1])
				continue
			}
			dir := t.TempDir()
			err := errors.Join(os.Mkdir(filepath.Join(dir, "conf.d"), 0o755), os.WriteFile(filepath.Join(dir, name[1]), []byte(m[1]), 0o644))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := LoadHost(filepath.Join(dir, "config.toml"), nil); err != nil {
				t.Errorf("%s: %v, in:\n%s", page, err, m[1])
			}
		}
	}
	if n < 4 {
		t.Errorf("the documentation has %d settings", n)
	}
}
