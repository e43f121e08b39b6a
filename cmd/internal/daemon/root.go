package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// checkDirs returns errdefs.ErrFailedPrecondition, with advice, for a root that cannot hold the
// store, or a directory that belongs to others.
func checkDirs(c *config.Config) error {
	if err := dirs.Check(c, "/"); err != nil {
		return err
	}
	root := c.Root
	info, err := os.Stat(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the store creates it
	}
	if err != nil {
		return fmt.Errorf("root: %w", err)
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
		Chains: c.Lazy.TableSign != "",
		GGUF:   func(size int64) store.Sniffer { return gguf.NewSniffer(gguf.Options{Size: size}) },
		Log:    log,
	}
}

const (
	// goMemory is the size of Go heap and stacks, in bytes, above which the garbage collector works
	// harder. The chunks of the store (store.Options.Connections), the answers of the lazy mount
	// (lazy.MaxBuffers), the index of the store's objects (store.Memory) and what conversions have
	// reserved (convert.Reserve) come on top of it.
	goMemory = 64 << 20

	// memoryStep is the change of the memory of conversions, in bytes, after which the limit
	// changes, which stops the program for a moment.
	memoryStep = 16 << 20
)

// limitMemory sets a memory limit of goMemory plus the bytes of the store in it, and of conversions
// as they come and go, unless the environment sets another limit.
func limitMemory(store int64) {
	if config.MemoryLimited() {
		return
	}
	steps := int64(-1)
	convert.OnReserve(func(n int64) {
		if now := (n + memoryStep - 1) / memoryStep; now != steps {
			steps = now
			debug.SetMemoryLimit(goMemory + store + steps*memoryStep)
		}
	})
}
