package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// versions are kept contents of files of the host, by their paths.
type versions map[string][]digest.Digest

// has reports whether a content is among those of a file.
func (v versions) has(p string, d digest.Digest) bool { return slices.Contains(v[p], d) }

// add adds a content to those of a file.
func (v versions) add(p string, d digest.Digest) {
	if !v.has(p, d) {
		v[p] = append(slices.Clone(v[p]), d)
	}
}

// modeOf returns the permissions of a file.
func (h host) modeOf(p string) (fs.FileMode, error) {
	name, err := h.Follow(p)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), nil
}

// kept returns where a version of a file is kept, with its mode and its owner.
func kept(p string, d digest.Digest) string {
	_, hex, _ := strings.Cut(d.String(), ":")
	return filepath.Join(keptDir, p+"@"+hex)
}

// digestAt returns the digest of a file, or "" if it does not exist.
func (h host) digestAt(p string) (digest.Digest, error) {
	name, err := h.Follow(p)
	if err != nil {
		return "", err
	}
	d, err := digestOf(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return d, err
}

// digestOf returns the digest of a file of this process's file system.
func digestOf(name string) (digest.Digest, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file: %w", name, errdefs.ErrFailedPrecondition)
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digest.FromReader(f)
}

// keep keeps the version of a file that is there.
func (h host) keep(p string, d digest.Digest) error {
	if err := errors.Join(h.mkdir(keptDir, 0o700), h.clone(p, kept(p, d), p)); err != nil {
		return fmt.Errorf("keep %s: %w", p, err)
	}
	return nil
}

// back gives a file a version that is kept, with the mode and the owner of a file: of the kept one, or of the one
// that is there.
func (h host) back(p string, d digest.Digest, like string) error {
	err := h.clone(kept(p, d), p, like)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s is lost: %w", kept(p, d), errdefs.ErrDataLoss)
	}
	return err
}

// clone copies a file of the host durably, with the mode and the owner of another. A symbolic link to a file is kept,
// and that file is replaced.
func (h host) clone(from, to, like string) error {
	if err := h.mkdir(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := h.Follow(from)
	if err != nil {
		return err
	}
	dst, err := h.Follow(to)
	if err != nil {
		return err
	}
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	model, err := h.Follow(like)
	if err != nil {
		return err
	}
	info, err := os.Stat(model)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return durable.CopyFile(dst, f, info.Mode().Perm(), int(stat.Uid), int(stat.Gid))
}

// versions returns all that is kept.
func (h host) versions() (versions, error) {
	root, err := h.Path(keptDir)
	if err != nil {
		return nil, err
	}
	all := versions{}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name = strings.TrimPrefix(name, root)
		i := strings.LastIndexByte(name, '@')
		if of := digest.NewDigestFromEncoded(digest.SHA256, name[i+1:]); i > 0 && (of.Validate() == nil || durable.Unfinished(name)) {
			all[name[:i]] = append(all[name[:i]], of)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// others returns the kept versions of files of others: without a record, all that are there.
func (h host) others(r *record) (versions, error) {
	if r != nil {
		return r.Kept, nil
	}
	all, err := h.versions()
	for p, list := range all {
		all[p] = slices.DeleteFunc(list, func(d digest.Digest) bool { return d.Validate() != nil })
	}
	return all, err
}

// needed returns the versions of others that are to be put back by a record, or are not in their places.
func (h host) needed(v versions, r *record) versions {
	out := versions{}
	for p, list := range v {
		now, _ := h.digestAt(p) // something else than a file is none of them
		for _, d := range list {
			if d != now || d == r.Files[p].Was {
				out.add(p, d)
			}
		}
	}
	return out
}

// tidy removes what is kept and a record, or its run, does not need.
func (h host) tidy(r *record) error {
	all, err := h.versions()
	if err != nil {
		return err
	}
	for p, list := range all {
		for _, d := range list {
			if r.Kept.has(p, d) || r.Run != nil && r.Run.Files[p] == d {
				continue
			}
			if err := h.remove(kept(p, d)); err != nil {
				return err
			}
		}
	}
	return h.prune(keptDir)
}

// prune removes the empty directories of a tree.
func (h host) prune(dir string) error {
	names, err := h.List(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if p := filepath.Join(dir, n); h.IsDir(p) {
			if err := h.prune(p); err != nil {
				return err
			}
		}
	}
	return h.remove(dir)
}
