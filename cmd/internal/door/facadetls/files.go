package facadetls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
)

// The modes of the directory and of its files, whatever the umask is.
const (
	dirMode    = 0o700
	secretMode = 0o600
	publicMode = 0o644
)

// Dir returns the directory of the keys below the root of the daemon.
func Dir(root string) string { return filepath.Join(root, "tls") }

// CAFile returns the path of the certificate of the CA: "ca" of hosts.toml.
func CAFile(root string) string { return filepath.Join(Dir(root), "ca.pem") }

// ClientFile returns the path of containerd's certificate and key: "client" of hosts.toml.
func ClientFile(root string) string { return filepath.Join(Dir(root), "client.pem") }

func authorityFile(root string) string { return filepath.Join(Dir(root), "authority.pem") }

// Made reports whether a root has keys: a directory of the root's own, of which nothing else is left.
func Made(root string) bool {
	for _, p := range []string{CAFile(root), ClientFile(root), authorityFile(root)} {
		if info, err := os.Lstat(p); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// makeDir creates the directory, or removes the permissions of other users.
func makeDir(dir string) error {
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory: %w", dir, errdefs.ErrFailedPrecondition)
	case !owned(info):
		return fmt.Errorf("%s belongs to another user: %w", dir, errdefs.ErrFailedPrecondition)
	case info.Mode().Perm() == dirMode: // checked every minute, which should write nothing
		return nil
	}
	return os.Chmod(dir, dirMode)
}

func owned(info fs.FileInfo) bool { return int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() }

// An exposedError is a key that other users could read.
type exposedError struct{ path string }

func (e *exposedError) Error() string { return e.path + " can be read or changed by others" }

// readPair reads a certificate with its key. It returns an *exposedError if other users could read
// the key.
func readPair(path string) (*pair, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	if info.Mode().Perm()&^secretMode != 0 || !owned(info) {
		return nil, &exposedError{path}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := parsePair(b)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return p, nil
}

// isUnreadable reports whether an error of readPair says nothing about the file, as without a free descriptor.
func isUnreadable(err error) bool {
	return errors.As(err, new(*fs.PathError)) && !errors.Is(err, fs.ErrNotExist)
}

// writePair writes a certificate with its key.
func writePair(path string, p *pair) error {
	b, err := p.pem()
	if err != nil {
		return err
	}
	return durable.WriteFile(path, b, secretMode)
}
