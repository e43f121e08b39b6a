package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// checkRoot returns errdefs.ErrFailedPrecondition, with advice, for a root that cannot hold the
// store.
func checkRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // the store creates it
	case err != nil:
		return fmt.Errorf("root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("root %s is not a directory: %w", root, errdefs.ErrFailedPrecondition)
	}
	base := info.Sys().(*syscall.Stat_t).Dev
	for _, p := range rootParts {
		info, err := os.Stat(filepath.Join(root, p))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if info.Sys().(*syscall.Stat_t).Dev != base {
			return fmt.Errorf("%s is on another file system than %s; mount one file system at the root: %w", filepath.Join(root, p), root, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// closeRoot removes the permissions of other users on a root: earlier versions made its objects
// readable for all. The directories at its top protect everything below them.
func closeRoot(root string, log *slog.Logger) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the store creates it
	}
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	dirs := []string{root}
	for _, e := range entries {
		if e.IsDir() && e.Name() != lazyDir { // which can be a mount without a server
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	var closed []string
	for _, d := range dirs {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if info.Mode().Perm()&^privateMode == 0 {
			continue
		}
		if err := os.Chmod(d, privateMode); err != nil {
			return fmt.Errorf("root: %w", err)
		}
		closed = append(closed, fmt.Sprintf("%s (%04o)", d, info.Mode().Perm()))
	}
	if closed != nil {
		log.Warn("directories that others could enter are closed to them", "dirs", strings.Join(closed, ", "))
	}
	return nil
}

// oldTempDir is the directory below the root that earlier versions used in place of
// upstream.TempDir.
const oldTempDir = string(mediatype.FormatCarton)

// privateMode is the mode of directories that only root may access.
const privateMode fs.FileMode = 0o700

// rootParts are the directories below the root that must be on one file system.
var rootParts = []string{"objects", "partial", "snapshots"}

func storeOptions(c *config.Config, log *slog.Logger) store.Options {
	return store.Options{
		Connections: c.Fetch.Connections,
		Reserve:     max(1, int64(c.Fetch.Reserve)), // for the store, 0 means its default
		Linger:      max(1, c.Fetch.Linger.Duration),
		Evict: store.EvictOptions{
			Interval: c.GC.Interval.Duration,
			High:     int(c.GC.High),
			Low:      int(c.GC.Low),
			Quota:    int64(c.GC.Quota),
		},
		Log: log,
	}
}

// goMemory is the size of Go heap and stacks, in bytes, above which the garbage collector works
// harder. The chunks of the store (store.Options.Connections), the answers of the lazy mount
// (lazy.MaxBuffers) and the index of the store's objects (store.Memory) come on top of it.
const goMemory = 64 << 20

// limitMemory sets a memory limit of goMemory plus the bytes of the store in it, unless the
// environment sets another limit.
func limitMemory(store int64) {
	if !config.MemoryLimited() {
		debug.SetMemoryLimit(goMemory + store)
	}
}
