package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// Load reads the configuration file at path, with its drop-ins. An empty path means
// $BALLAST_CONFIG, then DefaultPath; only DefaultPath may be missing.
//
// It returns errdefs.ErrInvalidArgument, with file and line if known, for a file that is not valid.
func Load(path string) (*Config, error) {
	c, _, err := LoadFiles(path)
	return c, err
}

// LoadFiles is Load, and also returns the files that were read.
func LoadFiles(path string) (*Config, []string, error) {
	c := Default()
	c.From = path
	fromEnvironment(c)
	path, must := find(path)
	return load(c, path, must, nil)
}

// find returns the configuration file for the argument of Load, and whether it must exist.
func find(path string) (file string, must bool) {
	if path = cmp.Or(path, os.Getenv("BALLAST_CONFIG")); path == "" {
		return DefaultPath, false
	}
	return path, true
}

// DropIns returns the directory of the drop-ins for the argument of Load.
func DropIns(path string) string {
	file, _ := find(path)
	return dropIns(file)
}

// dropIns returns the directory of the drop-ins of a configuration file.
func dropIns(file string) string { return filepath.Join(filepath.Dir(file), "conf.d") }

// LoadHost reads the configuration of a host whose DefaultPath is at path in this process. The file
// may be missing, and the environment is not used: that of the host's daemon is another one.
// Drop-ins named in instead have the content given there.
func LoadHost(path string, instead map[string]string) (*Config, error) {
	c, _, err := load(Default(), path, false, instead)
	return c, err
}

// load reads a file, which must exist if must is set, and its drop-ins into c. Drop-ins named in
// instead have the content given there.
func load(c *Config, path string, must bool, instead map[string]string) (*Config, []string, error) {
	var read []string
	err := decodeFile(path, c)
	switch {
	case err == nil:
		read = append(read, path)
	case errors.Is(err, fs.ErrNotExist) && !must:
	default:
		return nil, nil, err
	}
	dropins, err := filepath.Glob(filepath.Join(dropIns(path), "*.toml"))
	if err != nil {
		return nil, nil, err
	}
	for name := range instead {
		dropins = append(dropins, filepath.Join(dropIns(path), name))
	}
	slices.Sort(dropins)
	for _, p := range slices.Compact(dropins) {
		if text, ok := instead[filepath.Base(p)]; ok {
			err = decode(p, []byte(text), c)
		} else {
			err = decodeFile(p, c)
		}
		if err != nil {
			return nil, nil, err
		}
		read = append(read, p)
	}
	if err := c.validate(); err != nil {
		return nil, nil, err
	}
	return c, read, nil
}

// fromEnvironment sets the defaults given by the environment.
func fromEnvironment(c *Config) {
	if s := os.Getenv("CONTAINERD_ADDRESS"); s != "" {
		c.Containerd.Address = strings.TrimPrefix(s, "unix://")
	}
	c.Upstream.DockerConfig = cmp.Or(environmentDockerConfig(), c.Upstream.DockerConfig)
}

// environmentDockerConfig returns the docker config file that $DOCKER_CONFIG names, or "".
func environmentDockerConfig() string {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "config.json")
}

// UserDockerConfig returns the docker config file of the user of this process, where docker and nerdctl look for it.
func UserDockerConfig() (string, error) {
	if file := environmentDockerConfig(); file != "" {
		return file, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".docker", "config.json"), err
}

// AdminAddress returns the admin socket for a client: flag if not empty, then $BALLAST_ADMIN, then
// the one in c.
func AdminAddress(flag string, c *Config) string {
	if flag != "" {
		return flag
	}
	if s := os.Getenv("BALLAST_ADMIN"); s != "" {
		return s
	}
	return c.AdminAddress
}

// MemoryLimited reports whether the environment limits the memory of the process, $GOMEMLIMIT.
func MemoryLimited() bool { return os.Getenv("GOMEMLIMIT") != "" }

func decodeFile(path string, c *Config) error {
	p, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return decode(path, p, c)
}

// decode sets the values of p in c. name is for messages.
func decode(name string, p []byte, c *Config) error {
	c.Version = 0
	defer func() { c.Verify.beside(filepath.Dir(name)) }()
	dec := toml.NewDecoder(bytes.NewReader(p)).DisallowUnknownFields()
	err := dec.Decode(c)
	var missing *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &missing):
		var lines []string
		for _, e := range missing.Errors {
			row, _ := e.Position()
			lines = append(lines, fmt.Sprintf("%s:%d: unknown key %q", name, row, strings.Join(e.Key(), ".")))
		}
		return fmt.Errorf("%s: %w", strings.Join(lines, "\n"), errdefs.ErrInvalidArgument)
	case errors.As(err, &bad):
		row, _ := bad.Position()
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		if f, ok := field(bad.Key()); ok {
			text = strings.Join(bad.Key(), ".") + ": " + text
			if strings.Contains(text, "cannot decode TOML ") {
				text = strings.Join(bad.Key(), ".") + " is " + describe(f)
			}
		}
		return fmt.Errorf("%s:%d: %s: %w", name, row, text, errdefs.ErrInvalidArgument)
	case err != nil:
		return fmt.Errorf("%s%w: %w", place(name, p), err, errdefs.ErrInvalidArgument)
	}
	switch c.Version {
	case Version:
		return nil
	case 0:
		return fmt.Errorf("%s has no \"version = %d\" line; write it at the top: %w", name, Version, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: version is %d, this ballast supports %d: %w", name, c.Version, Version, errdefs.ErrInvalidArgument)
}

// field returns the default of a key.
func field(key []string) (v reflect.Value, ok bool) {
	v = reflect.ValueOf(*Default())
	for _, k := range key {
		if v.Kind() == reflect.Slice { // of tables
			v = reflect.Zero(v.Type().Elem())
		}
		if v.Kind() != reflect.Struct {
			return v, false
		}
		f, found := v.Type().FieldByNameFunc(func(name string) bool {
			f, _ := v.Type().FieldByName(name)
			tag, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			return tag == k
		})
		if !found {
			return v, false
		}
		v = v.FieldByIndex(f.Index)
	}
	return v, len(key) > 0
}

// describe returns what a key has, with its default as an example.
func describe(v reflect.Value) string {
	kind := map[reflect.Kind]string{reflect.Int: "a number", reflect.Bool: "true or false", reflect.Slice: "a list in brackets", reflect.Struct: "a table"}[v.Kind()]
	text, err := toml.Marshal(map[string]any{"v": v.Interface()})
	example, isValue := strings.CutPrefix(strings.TrimSpace(string(text)), "v = ")
	_, isText := v.Interface().(encoding.TextMarshaler)
	switch {
	case isText || v.Kind() == reflect.String:
		kind = "a text in quotes"
	case v.Kind() == reflect.Bool:
		return kind
	}
	if err != nil || !isValue || example == "[]" || example == "''" {
		return kind
	}
	return kind + ", such as " + example
}

// place returns the file, the line and the key of the first number without a unit that is wrong, each with a colon, or
// the file alone. The decoder reports neither key nor line of one.
func place(name string, p []byte) string {
	var table []string
	row := 0
	for line := range strings.Lines(string(p)) {
		row++
		line = strings.TrimSpace(line)
		if header, ok := strings.CutPrefix(line, "["); ok {
			table = strings.Split(strings.Trim(header, "[] "), ".")
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		value, _, _ = strings.Cut(value, "#")
		f, known := field(append(slices.Clone(table), key))
		if !ok || !known {
			continue
		}
		if to, ok := reflect.New(f.Type()).Interface().(encoding.TextUnmarshaler); ok && to.UnmarshalText([]byte(strings.TrimSpace(value))) != nil &&
			!strings.ContainsAny(value, "\"'") {
			return fmt.Sprintf("%s:%d: %s: ", name, row, strings.Join(append(table, key), "."))
		}
	}
	return name + ": "
}

// Write writes c as a configuration file in which every key has its comment.
func (c *Config) Write(w io.Writer) error {
	var b bytes.Buffer
	if err := toml.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
