package pullsecret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// keyFile has the key, keySize bytes for AES-256.
const (
	keyFile = "key"
	keySize = 32
)

// purpose is authenticated with each name, so that a file cannot be used for another purpose.
const purpose = "ballast pull secrets 1 "

// Open returns Secrets that keep the secrets needed by snapshots below dir, sealed. An unusable key
// is replaced; secrets sealed with it are lost.
func Open(dir string, log *slog.Logger) (*Secrets, error) {
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return nil, fmt.Errorf("pull secrets: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("pull secrets: %w", err)
	}
	s := &Secrets{root: root, log: log, sealed: map[string][]Secret{}}
	if err := s.openKey(); err != nil {
		return nil, errors.Join(fmt.Errorf("pull secrets: %w", err), root.Close())
	}
	return s, nil
}

// Remove removes the files of Open and Need below dir.
func Remove(dir string) error { return os.RemoveAll(dir) }

// Close closes the directory. Sealed secrets stay.
func (s *Secrets) Close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

// openKey reads the key, or creates one.
func (s *Secrets) openKey() error {
	key, err := s.root.ReadFile(keyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(key) != keySize {
		key = make([]byte, keySize)
		rand.Read(key) // never fails
		if err := durable.Write(s.root, keyFile, key, 0o600); err != nil {
			return err
		}
	}
	if err := s.root.Chmod(keyFile, 0o600); err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	s.seal.AEAD, err = cipher.NewGCMWithRandomNonce(block)
	return err
}

// load reads the secrets of a name from disk, and removes a file that cannot be opened. It requires
// s.disk.
func (s *Secrets) load(name string) error {
	p, err := s.root.ReadFile(fileOf(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	secrets, err := s.seal.open(name, p)
	if err != nil {
		s.log.Warn("sealed pull secrets cannot be opened and are removed; models that need them must be pulled again", "name", name, "err", err)
		return s.root.Remove(fileOf(name))
	}
	for _, c := range slices.Backward(secrets) {
		s.keep(name, c)
	}
	s.sealed[name] = s.peek(name)
	return nil
}

// save writes the secrets of a name to disk if they changed. It requires s.disk.
func (s *Secrets) save(name string, secrets []Secret) error {
	if slices.Equal(secrets, s.sealed[name]) {
		return nil
	}
	if err := durable.Write(s.root, fileOf(name), s.seal.close(name, secrets), 0o600); err != nil {
		return fmt.Errorf("seal pull secrets: %w", err)
	}
	s.sealed[name] = secrets
	return nil
}

// prune removes the files of all other names. It requires s.disk.
func (s *Secrets) prune(names []string) error {
	keep := map[string]bool{keyFile: true}
	for _, n := range names {
		keep[fileOf(n)] = true
	}
	for n := range s.sealed {
		if !keep[fileOf(n)] {
			delete(s.sealed, n)
		}
	}
	files, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, f := range files {
		if !keep[f.Name()] {
			err = errors.Join(err, s.root.Remove(f.Name()))
		}
	}
	return err
}

// fileOf returns the file name for a name.
func fileOf(name string) string { return digest.FromString(name).Encoded() }

// A sealer seals and opens secrets.
type sealer struct{ cipher.AEAD }

// plain is what is sealed.
type plain struct {
	Username string `json:"username"`
	Secret   string `json:"secret"`
}

func (s sealer) close(name string, secrets []Secret) []byte {
	var l []plain
	for _, c := range secrets {
		l = append(l, plain(c.Credentials))
	}
	p, err := json.Marshal(l)
	if err != nil {
		panic("pullsecret: internal error: " + err.Error()) // strings can be encoded
	}
	return s.Seal(nil, nil, p, []byte(purpose+name))
}

func (s sealer) open(name string, p []byte) (secrets []remote.Credentials, err error) {
	p, err = s.Open(nil, nil, p, []byte(purpose+name))
	if err != nil {
		return nil, fmt.Errorf("wrong key or name, or damaged: %w", errdefs.ErrDataLoss)
	}
	var l []plain
	if err := json.Unmarshal(p, &l); err != nil {
		return nil, fmt.Errorf("unexpected content: %w", errdefs.ErrDataLoss) // without its bytes
	}
	for _, c := range l {
		secrets = append(secrets, remote.Credentials(c))
	}
	return secrets, nil
}
