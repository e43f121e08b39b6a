package hostsfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/store/verify"
	continuity "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// maxSize limits the size of a hosts.toml that is read, in bytes.
const maxSize = 1 << 20 // 1 MiB

// Names of programs that write hosts.toml files.
const (
	Dragonfly = "Dragonfly"
	Spegel    = "Spegel"
)

// What programs write into hosts.toml files and no other: Dragonfly's dfinit a header, and into that of
// all registries the address of its proxy; Spegel a short timeout, in single quotes.
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client-init/src/container_runtime/containerd.rs
// https://github.com/spegel-org/spegel/blob/v0.7.4/pkg/oci/containerd.go
var marks = []struct{ mark, name string }{
	{"X-Dragonfly-Registry", Dragonfly},
	{`"http://127.0.0.1:4001"`, Dragonfly},
	{`"http://127.0.0.1:65001"`, Dragonfly},
	{"dial_timeout = '200ms'", Spegel},
}

// SpegelBackup is the directory to which Spegel moves all that it finds beside it.
const SpegelBackup = "_backup"

// Writer returns the name of the program that has replaced a hosts.toml of a host, or taken it away, or "" if it is
// unknown. root is the root of the host in this process.
func Writer(root, file string) string {
	text, _ := read(root, file)
	for _, m := range marks {
		if strings.Contains(text, m.mark) {
			return m.name
		}
	}
	dir, registry := filepath.Split(filepath.Dir(file))
	moved, err := continuity.RootPath(root, filepath.Join(dir, SpegelBackup, registry))
	if err != nil || text != "" {
		return ""
	}
	if _, err := os.Stat(moved); err != nil {
		return ""
	}
	return Spegel
}

// Replaced returns, sorted, the paths of a list that are gone, have another content, or cannot be read. Files of a
// root that does not have the directory of containerd's configuration are left out: a daemon in a container has the
// configuration of ballast, and not that of containerd.
func Replaced(list []config.HostsFile) []string {
	var paths []string
	for _, f := range list {
		if _, err := os.Stat(filepath.Dir(filepath.Dir(filepath.Dir(f.File)))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if text, err := read("/", f.File); err != nil || verify.Bytes(f.Digest, []byte(text)) != nil {
			paths = append(paths, f.File)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Names reports whether a hosts.toml of this machine contains one of some addresses.
func Names(file string, addresses []string) bool {
	text, err := read("/", file)
	return err == nil && slices.ContainsFunc(addresses, func(a string) bool { return strings.Contains(text, a) })
}

// read returns the content of a file of a host. A pipe is not waited for.
func read(root, file string) (string, error) {
	name, err := continuity.RootPath(root, file)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxSize {
		return "", errors.Join(err, fmt.Errorf("%s is not a hosts.toml", file))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize))
	return string(text), err
}
