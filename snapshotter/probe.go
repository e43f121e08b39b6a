package snapshotter

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Abilities says which ways of showing a model work. A nil error means that it does.
type Abilities struct {
	Stubs error
	Links error
}

// Best returns Stubs if that works, otherwise Links, or an error if neither does.
func (a Abilities) Best() (Way, error) {
	switch {
	case a.Stubs == nil:
		return Stubs, nil
	case a.Links == nil:
		return Links, nil
	}
	return "", fmt.Errorf("models can not be shown: stubs: %w; links: %w", a.Stubs, a.Links)
}

// Probe tries both ways of showing a model, with a mount of its own that is gone on return.
// dir is a directory on the file system of the snapshots, objects that of the store's
// objects. Probe writes to temporary directories in dir only.
func Probe(dir, objects string) Abilities {
	return Abilities{Stubs: probe(dir, probeStubs), Links: probeLinks(dir, objects)}
}

// choose returns the way asked for if it works.
func choose(way Way, dir, objects string, log *slog.Logger) (Way, error) {
	switch way {
	case "", Auto:
		a := Probe(dir, objects)
		best, err := a.Best()
		if err == nil && best == Links {
			log.Warn("models are shown as hard links: files have the mode and time of their object", "err", a.Stubs)
		}
		return best, err
	case Stubs:
		if err := probe(dir, probeStubs); err != nil {
			return "", fmt.Errorf("show models as stubs: %w: %w", err, errdefs.ErrNotImplemented)
		}
	case Links:
		if err := probeLinks(dir, objects); err != nil {
			return "", fmt.Errorf("show models as links: %w: %w", err, errdefs.ErrNotImplemented)
		}
	default:
		return "", fmt.Errorf("show models as %q: not one of %s, %s, %s: %w", way, Auto, Stubs, Links, errdefs.ErrInvalidArgument)
	}
	return way, nil
}

// probe calls f with a new directory in dir.
func probe(dir string, f func(dir string) error) error {
	temp, err := os.MkdirTemp(dir, "probe-")
	if err != nil {
		return err
	}
	return errors.Join(f(temp), os.RemoveAll(temp))
}

// probeLinks tries to link a file, and whether the objects are on the same file system.
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

// probeStubs shows one stub through an overlay mount and reads it.
func probeStubs(dir string) (err error) {
	if err := mountable(dir); err != nil {
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
	stub := at("lower/stub")
	if err := os.WriteFile(stub, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(stub, int64(len(content))); err != nil {
		return err
	}
	if err := unix.Setxattr(stub, xattrRedirect, []byte("/object"), 0); err != nil {
		return fmt.Errorf("set %s: %w", xattrRedirect, err)
	}
	if err := unix.Setxattr(stub, xattrMetacopy, nil, 0); err != nil {
		return fmt.Errorf("set %s: %w", xattrMetacopy, err)
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
		return fmt.Errorf("overlay with a data-only lower layer shows other bytes: %w", errdefs.ErrDataLoss)
	}
	return nil
}
