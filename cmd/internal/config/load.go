package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
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
	must := true
	if path == "" {
		path = os.Getenv("BALLAST_CONFIG")
	}
	if path == "" {
		path, must = DefaultPath, false
	}
	c := Default()
	fromEnvironment(c)
	return load(c, path, must, nil)
}

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
	dropins, err := filepath.Glob(filepath.Join(filepath.Dir(path), "conf.d", "*.toml"))
	if err != nil {
		return nil, nil, err
	}
	for name := range instead {
		dropins = append(dropins, filepath.Join(filepath.Dir(path), "conf.d", name))
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
	if s := os.Getenv("DOCKER_CONFIG"); s != "" {
		c.Upstream.DockerConfig = filepath.Join(s, "config.json")
	}
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

// KubernetesService returns the address "host:port" of the API server that the kubelet passes to
// containers, or "" outside of a cluster.
func KubernetesService() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
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
		if key := strings.Join(bad.Key(), "."); key != "" {
			return fmt.Errorf("%s:%d: %s: %w: %w", name, row, key, err, errdefs.ErrInvalidArgument)
		}
		return fmt.Errorf("%s:%d: %w: %w", name, row, err, errdefs.ErrInvalidArgument)
	case err != nil:
		return fmt.Errorf("%s: %s%w: %w", name, bareDuration(p), err, errdefs.ErrInvalidArgument)
	}
	switch c.Version {
	case Version:
		return nil
	case 0:
		return fmt.Errorf("%s has no \"version = %d\" line; write it at the top: %w", name, Version, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: version is %d, this ballast supports %d: %w", name, c.Version, Version, errdefs.ErrInvalidArgument)
}

// bareDuration returns the key, followed by a colon, of a duration that p gives as a number, or "".
// The decoder reports neither key nor line in this case.
func bareDuration(p []byte) string {
	var tables map[string]any
	if toml.Unmarshal(p, &tables) != nil {
		return ""
	}
	for section := range reflect.TypeFor[Config]().Fields() {
		table, _ := tables[section.Tag.Get("toml")].(map[string]any)
		if section.Type.Kind() != reflect.Struct {
			continue
		}
		for f := range section.Type.Fields() {
			if f.Type != reflect.TypeFor[Duration]() {
				continue
			}
			key := f.Tag.Get("toml")
			if v, ok := table[key]; ok && reflect.TypeOf(v).Kind() != reflect.String {
				return section.Tag.Get("toml") + "." + key + ": "
			}
		}
	}
	return ""
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
