package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/contrib/image/build"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// A file is a file of the image, or a directory if it has no data.
type file struct {
	path string // relative to the root
	mode fs.FileMode
	data []byte
}

// Paths of files in the image.
const (
	binDir   = "usr/local/bin"
	certFile = "etc/ssl/certs/ca-certificates.crt" // where Go looks first
)

// documents returns the directory of the documentation with the licence, and the notices of modules.
func (s *settings) documents(modules []build.Module) ([]file, error) {
	licence, err := os.ReadFile(filepath.Join(s.Source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	dir := fs.FileMode(0o755)
	return []file{
		{"tmp", 0o777 | fs.ModeSticky, nil},
		{"usr", dir, nil}, {"usr/share", dir, nil}, {"usr/share/doc", dir, nil}, {"usr/share/doc/ballast", dir, nil},
		{"usr/share/doc/ballast/LICENSE", 0o644, licence}, {"usr/share/doc/ballast/NOTICES", 0o644, build.Notices(modules)},
	}, nil
}

// common returns the files that are the same for all architectures, directories before their content.
func (s *settings) common(ctx context.Context) ([]file, error) {
	modules, err := build.Modules(ctx, build.Archs, s.Ours(), s.Fleet())
	if err != nil {
		return nil, err
	}
	documents, err := s.documents(modules)
	if err != nil {
		return nil, err
	}
	dir := fs.FileMode(0o755)
	return append([]file{{"etc", dir, nil}, {"etc/ssl", dir, nil}, {"etc/ssl/certs", dir, nil}, {certFile, 0o644, certificates()}}, documents...), nil
}

// programs builds programs for an architecture.
func programs(ctx context.Context, arch string, mains ...build.Main) (_ []file, err error) {
	dir, err := os.MkdirTemp("", "ballast-image-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, m := range mains {
		if err := m.Write(ctx, arch, dir); err != nil {
			return nil, err
		}
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := []file{{"usr", 0o755, nil}, {"usr/local", 0o755, nil}, {binDir, 0o755, nil}}
	for _, e := range names {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{filepath.Join(binDir, e.Name()), 0o755, p})
	}
	return files, nil
}

// certificates returns the roots that are trusted without conditions, as PEM.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return b.Bytes()
}

// archive returns files as a tar with owner root and one time for all.
func archive(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.path, Typeflag: tar.TypeReg, Mode: int64(f.mode.Perm()), Size: int64(len(f.data)), ModTime: at}
		if f.data == nil {
			h.Name, h.Typeflag = f.path+"/", tar.TypeDir
		}
		if f.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000 // the bits of tar
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // before the bytes are taken: it writes the end
		return nil, err
	}
	return b.Bytes(), nil
}
