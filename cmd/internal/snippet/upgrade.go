package snippet

import (
	"fmt"
	"net"
	"strings"

	"github.com/containerd/errdefs"
)

// RegistryOf returns the registry of a directory of hosts.toml: "host_5000_" is "host:5000".
func RegistryOf(dir string) string {
	if rest, ok := strings.CutSuffix(dir, "_"); ok {
		if i := strings.LastIndexByte(rest, '_'); i > 0 {
			return rest[:i] + ":" + rest[i+1:]
		}
	}
	return dir
}

// AsksPlain reports whether a hosts.toml has the address of a facade, "host:port", with plain HTTP.
func AsksPlain(text, facade string) bool {
	_, port, _ := net.SplitHostPort(facade)
	for _, a := range []string{facade, "127.0.0.1:" + port, "localhost:" + port, "[::1]:" + port} {
		_, rest, ok := strings.Cut(text, "http://"+a)
		if ok && (rest == "" || rest[0] < '0' || rest[0] > '9') { // another port
			return true
		}
	}
	return false
}

// Upgrade returns the new content of a hosts.toml that was written by Hosts.Write without keys, in
// the directory dir. h has the facade and the keys. It returns "" for a file that does not use the
// facade by plain HTTP, and errdefs.ErrFailedPrecondition for one that does and was changed.
func Upgrade(text, dir string, h Hosts) (string, error) {
	if !AsksPlain(text, h.Facade) {
		return "", nil
	}
	for _, registry := range []string{dir, RegistryOf(dir)} {
		for _, c := range []Hosts{{}, {PlainHTTP: true}, {Open: registry == DefaultRegistry}} {
			c.Registry, c.Facade = registry, h.Facade
			var old, fresh strings.Builder
			if c.Write(&old) != nil || old.String() != text {
				continue
			}
			c.CA, c.Client = h.CA, h.Client
			if err := c.Write(&fresh); err != nil {
				return "", err
			}
			return fresh.String(), nil
		}
	}
	return "", fmt.Errorf("it asks the facade by plain HTTP, and is not as \"ballast config hosts\" wrote it: %w", errdefs.ErrFailedPrecondition)
}
