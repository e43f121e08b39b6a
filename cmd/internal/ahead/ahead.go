package ahead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MinSize is the size of files from which reading ahead is worth it, in bytes.
	MinSize = 2 * window

	// maxProcesses limits how many models are followed at the same time. Others are loaded without.
	maxProcesses = 8

	// slow is the time for a request from which a disk waits.
	slow = 500 * time.Microsecond
)

// Options are the settings of an Ahead.
type Options struct {
	// Always reads ahead on fast disks, too.
	Always bool

	// Command is a program that calls Run with the files that it is passed from descriptor 3 on, whose
	// number is in a last argument --files=N, and with a context that ends with its standard input.
	Command []string

	Log *slog.Logger
}

// An Ahead reads models ahead that are mounted. Run waits for its processes.
type Ahead struct {
	o     Options
	mu    sync.Mutex
	ctx   context.Context // of Run; nil before and after
	names map[string]bool // models that are followed, and whether they were mounted again since
	wait  sync.WaitGroup
}

// New returns an Ahead, which does nothing before Run.
func New(o Options) *Ahead { return &Ahead{o: o, names: map[string]bool{}} }

// Run follows models until ctx ends, which is not an error.
func (a *Ahead) Run(ctx context.Context) error {
	a.mu.Lock()
	a.ctx = ctx
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	a.ctx = nil
	a.mu.Unlock()
	a.wait.Wait()
	return nil
}

// Mounted follows the loaders of a model that is mounted, once more if it does so already: the process may be
// about to end. It does not wait. open opens the large files of the model, in the order of their names; they are closed.
func (a *Ahead) Mounted(name string, open func(context.Context) ([]*os.File, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.names[name]; ok {
		a.names[name] = true
		return
	}
	if a.ctx == nil || len(a.names) == maxProcesses {
		return
	}
	ctx := a.ctx
	a.names[name] = false
	a.wait.Go(func() {
		for {
			if err := a.follow(ctx, name, open); err != nil && ctx.Err() == nil {
				a.o.Log.Info("the files of a model are not read ahead", "model", name, "err", err)
			}
			if a.ended(ctx, name) {
				return
			}
		}
	})
}

// ended reports whether a model that was followed need not be followed once more.
func (a *Ahead) ended(ctx context.Context, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names[name] && ctx.Err() == nil {
		a.names[name] = false
		return false
	}
	delete(a.names, name)
	return true
}

func (a *Ahead) follow(ctx context.Context, name string, open func(context.Context) ([]*os.File, error)) error {
	files, err := open(ctx)
	defer func() {
		for _, f := range files {
			_ = f.Close() // only read
		}
	}()
	if err != nil || len(files) == 0 {
		return err
	}
	if !a.o.Always {
		if d, err := requestTime(files[0]); err != nil || d < slow {
			a.o.Log.Debug("the disk does not wait, so files are not read ahead", "model", name, "request", d, "err", err)
			return nil
		}
	}
	args := append(slices.Clone(a.o.Command[1:]), fmt.Sprintf("--files=%d", len(files)))
	cmd := exec.CommandContext(ctx, a.o.Command[0], args...)
	cmd.Dir, cmd.ExtraFiles = "/", files
	stop, err := cmd.StdinPipe() // ends with this process, however that ends
	if err != nil {
		return err
	}
	defer stop.Close()
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	a.o.Log.Debug("follow the loader of a model", "model", name, "files", len(files), "pid", cmd.Process.Pid)
	text, _ := io.ReadAll(io.LimitReader(said, 4<<10)) // Wait returns why the process failed
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// requestTime returns how long the disk takes at least for a page of a file, or any time less than slow. The page cache is neither used
// nor filled. It returns errors.ErrUnsupported if the file system cannot do that.
func requestTime(f *os.File) (time.Duration, error) {
	const tries = 16 // the load of the machine delays some of them
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		return 0, errors.ErrUnsupported
	} else if err != nil {
		return 0, err
	}
	defer direct.Close()
	p, err := unix.Mmap(-1, 0, int(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(p)
	least := time.Hour
	for i := int64(0); i < tries && least >= slow; i++ {
		begin := time.Now()
		if _, err := direct.ReadAt(p, info.Size()/tries*i&^(page-1)); err != nil {
			return 0, err
		}
		least = min(least, time.Since(begin))
	}
	return least, nil
}
