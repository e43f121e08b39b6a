package snapshotter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Abilities reports which backends work; nil means that the backend works.
type Abilities struct {
	Stubs error
	Links error
}

// best returns tree.Stubs if it works, otherwise tree.Links. It returns an error if neither works.
func (a Abilities) best() (tree.Backend, error) {
	switch {
	case a.Stubs == nil:
		return tree.Stubs, nil
	case a.Links == nil:
		return tree.Links, nil
	}
	return "", fmt.Errorf("models cannot be shown: stubs: %w; links: %w", a.Stubs, a.Links)
}

// Probe tries both backends. dir is a directory on the file system of the snapshots, objects the
// directory of the store's objects. Probe writes only to temporary directories in dir and removes
// its mount before it returns.
func Probe(dir, objects string) Abilities {
	return Abilities{Stubs: probe(dir, probeStubs), Links: probeLinks(dir, objects)}
}

// choose returns backend b if it works.
func choose(b tree.Backend, dir, objects string, log *slog.Logger) (tree.Backend, error) {
	switch b {
	case "", Auto:
		a := Probe(dir, objects)
		best, err := a.best()
		if err == nil && best == tree.Links {
			log.Warn("models are shown as hard links: files have the mode and time of their object", "err", a.Stubs)
		}
		return best, err
	case tree.Stubs:
		if err := probe(dir, probeStubs); err != nil {
			return "", fmt.Errorf("show models as stubs: %w: %w", err, errdefs.ErrNotImplemented)
		}
	case tree.Links:
		if err := probeLinks(dir, objects); err != nil {
			return "", fmt.Errorf("show models as links: %w: %w", err, errdefs.ErrNotImplemented)
		}
	default:
		return "", fmt.Errorf("show models as %q: not one of %s, %s, %s: %w", b, Auto, tree.Stubs, tree.Links, errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// probe calls f with a temporary directory in dir.
func probe(dir string, f func(dir string) error) error {
	temp, err := os.MkdirTemp(dir, probePrefix)
	if err != nil {
		return err
	}
	return errors.Join(f(temp), os.RemoveAll(temp))
}

// probeLinks checks that objects is on the file system of dir and that hard links work.
func probeLinks(dir, objects string) error {
	var a, b unix.Stat_t
	if err := unix.Stat(dir, &a); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if err := unix.Stat(objects, &b); err != nil {
		return fmt.Errorf("stat %s: %w", objects, err)
	}
	if a.Dev != b.Dev {
		return fmt.Errorf("%s and %s are on different file systems: %w", dir, objects, unix.EXDEV)
	}
	return probe(dir, func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o444); err != nil {
			return err
		}
		return os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	})
}

// probeStubs reads a stub through an overlay mount.
func probeStubs(dir string) (err error) {
	if err := Mountable(dir); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"lower", "upper", "work", "data", "mnt"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			return err
		}
	}
	content := []byte("the content of the object\n")
	if err := os.WriteFile(at("data/object"), content, 0o444); err != nil {
		return err
	}
	object := tree.Objects{Dir: at("data"),
		Name: func(digest.Digest) string { return "object" },
		Size: func(digest.Digest) (int64, error) { return int64(len(content)), nil }}
	stub := filetable.File{Path: "stub", Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(content)), Digest: digest.FromBytes(content)}
	if _, err := tree.Show(context.Background(), at("lower"), object, tree.Stubs, []filetable.File{stub}); err != nil {
		return err
	}
	options := "lowerdir=" + at("lower") + "::" + at("data") + ",metacopy=on,upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := unix.Mount("overlay", at("mnt"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay with a data-only lower layer (Linux 6.5 or later): %w", err)
	}
	defer func() {
		if uerr := unix.Unmount(at("mnt"), unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", at("mnt"), uerr))
		}
	}()
	got, err := os.ReadFile(at("mnt/stub"))
	if err != nil {
		return fmt.Errorf("read through a data-only lower layer: %w", err)
	}
	if !bytes.Equal(got, content) {
		return fmt.Errorf("overlay with a data-only lower layer returns wrong bytes: %w", errdefs.ErrDataLoss)
	}
	return nil
}
