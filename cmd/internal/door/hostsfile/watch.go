package hostsfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// debounce is how long changes may go on before files are looked at: programs change several.
const debounce = time.Second

// Watch calls look with the files of list, at first and within seconds after each change of one, until ctx ends. A
// change in dropIns, the directory of the drop-ins that have the list, is one too.
func Watch(ctx context.Context, dropIns string, list func() []config.HostsFile, look func([]config.HostsFile)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch hosts.toml files: %w", err)
	}
	defer w.Close()
	for ctx.Err() == nil {
		if err := watch(w, dropIns); err != nil {
			return err
		}
		files := list()
		for _, f := range files {
			if err := watch(w, filepath.Dir(f.File)); err != nil {
				return err
			}
		}
		look(files) // a change from now on is an event
		if err := wait(ctx, w); err != nil {
			return fmt.Errorf("watch hosts.toml files: %w", err)
		}
	}
	return nil
}

// watch watches a directory and the two above it, as far as they exist: each can be moved away and made again. The
// outermost is first, so that none is made unseen.
func watch(w *fsnotify.Watcher, dir string) error {
	above := filepath.Dir(dir)
	for _, d := range []string{filepath.Dir(above), above, dir} {
		if err := w.Add(d); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("watch %s: %w", d, err)
		}
	}
	return nil
}

// wait returns after an event and those that follow it soon, or when ctx ends. Which file it was does not matter.
func wait(ctx context.Context, w *fsnotify.Watcher) error {
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-quiet:
			return nil
		case <-w.Events:
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
		}
		if quiet == nil {
			quiet = time.After(debounce)
		}
	}
}
