package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// inside are the commands for containers: they have an argument, and the root of the model.
var inside = map[string]func(w io.Writer, root, arg string) error{"check": checkSums, "cat": cat, "end": end}

// cat prints a file.
func cat(w io.Writer, root, path string) error {
	f, err := os.Open(filepath.Join(root, path))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// endLen is what end reads, in bytes.
const endLen = 4 << 10

// end prints the sha256 of the end of a file.
func end(w io.Writer, root, path string) error {
	f, err := os.Open(filepath.Join(root, path))
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, endLen)
	if _, err := f.Seek(-endLen, io.SeekEnd); err != nil {
		return err
	}
	if _, err := io.ReadFull(f, p); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%x\n", sha256.Sum256(p))
	return err
}

// checkSums compares the files below root, without what is mounted there, with a list as sha256sum writes it. Missing
// and additional files are errors.
func checkSums(w io.Writer, root, list string) error {
	f, err := os.Open(list)
	if err != nil {
		return err
	}
	defer f.Close()
	left, err := filesOf(root)
	if err != nil {
		return err
	}
	bad, all := 0, 0
	for s := bufio.NewScanner(f); s.Scan(); all++ {
		want, path, ok := strings.Cut(s.Text(), "  ")
		if !ok {
			return fmt.Errorf("%s: line %q", list, s.Text())
		}
		delete(left, path)
		switch got, err := sum(filepath.Join(root, path)); {
		case err != nil:
			return err
		case got != want:
			bad++
			fmt.Fprintf(w, "%s: FAILED\n", path)
		default:
			fmt.Fprintf(w, "%s: OK\n", path)
		}
	}
	for path := range left {
		bad++
		fmt.Fprintf(w, "%s: not in the list\n", path)
	}
	if bad > 0 || all == 0 {
		return fmt.Errorf("%d of %d files are wrong", bad, all)
	}
	return nil
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// filesOf returns the paths of the files below root that are of the same mount.
func filesOf(root string) (map[string]bool, error) {
	files := map[string]bool{}
	want, err := mountOf(root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mount, err := mountOf(path)
		switch {
		case err != nil:
			return err
		case mount != want && e.IsDir():
			return fs.SkipDir
		case mount != want || e.IsDir():
			return nil
		}
		rel, err := filepath.Rel(root, path)
		files[rel] = true
		return err
	})
	return files, err
}

// mountOf returns the number of the mount that shows a path.
func mountOf(path string) (uint64, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &s)
	if err == nil && s.Mask&unix.STATX_MNT_ID == 0 {
		err = errors.New("the kernel does not number mounts")
	}
	if err != nil {
		return 0, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return s.Mnt_id, nil
}
