package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// settle is how long changes of hosts.toml files may go on before they are looked at: programs change several.
const settle = time.Second

// changes are the events of a directory that can concern a hosts.toml in it or below it.
const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// WatchHosts calls changed with the files of ReplacedHosts on a host, within seconds, each time that others than before
// are gone or replaced, until ctx ends. It begins with those that are now, if there are some.
func WatchHosts(ctx context.Context, root string, changed func(paths []string)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch hosts.toml files: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer context.AfterFunc(ctx, func() { events.Close() })() // ends the read
	defer events.Close()
	var before []string
	buf := make([]byte, 64<<10)
	for {
		if err := watchDirs(events, root); err != nil {
			return err
		}
		now, err := ReplacedHosts(root) // after the directories are watched: later changes are events
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !slices.Equal(now, before):
			changed(now)
			before = now
		}
		if _, err := events.Read(buf); err != nil { // which file it was does not matter
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch hosts.toml files: %w", err)
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return nil
		}
	}
}

// watchDirs watches the directories of the record of a host and of its hosts.toml files, and the two above each of the
// latter, as far as they exist.
func watchDirs(events *os.File, root string) error {
	h := hostAt(root)
	dirs := []string{stateDir}
	r, err := h.readRecord()
	if err != nil {
		return err
	}
	if r != nil {
		for p := range r.Files {
			if filepath.Base(p) == "hosts.toml" {
				registry := filepath.Dir(p)
				certs := filepath.Dir(registry)
				dirs = append(dirs, registry, certs, filepath.Dir(certs)) // certs itself can be moved away and made again
			}
		}
	}
	conn, err := events.SyscallConn()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		var failed error
		err := conn.Control(func(fd uintptr) {
			_, failed = unix.InotifyAddWatch(int(fd), filepath.Join(root, dir), changes)
		})
		if errors.Is(err, os.ErrClosed) {
			return nil // ctx has ended
		}
		if failed != nil && !errors.Is(failed, unix.ENOENT) && !errors.Is(failed, unix.ENOTDIR) {
			return fmt.Errorf("watch %s: %w", dir, failed)
		}
	}
	return nil
}
