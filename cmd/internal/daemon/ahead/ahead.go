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

// A Mode says on which disks the files of a model are read ahead.
type Mode int

const (
	Auto Mode = iota // those that wait
	On               // all
	Off              // none
)

// Options are the settings of an Ahead.
type Options struct {
	// Command is a program that calls Run with the files that it is passed from descriptor 3 on, whose
	// number is in a last argument --files=N, and with a context that ends with its standard input.
	Command []string

	Log *slog.Logger
}

// An Ahead reads models ahead that are mounted. Run waits for its processes.
type Ahead struct {
	o     Options
	mu    sync.Mutex
	ctx   context.Context     // of Run; nil before and after
	names map[string]*request // of models that are followed, by name
	wait  sync.WaitGroup
}

// A request is what the mounts of a model ask for.
type request struct {
	always bool // one has the mode On
	again  bool // there were more since the process has started
}

// New returns an Ahead, which does nothing before Run.
func New(o Options) *Ahead { return &Ahead{o: o, names: map[string]*request{}} }

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
// about to end. It does not wait. mode returns what the user of the mount wants; those with Off are not followed,
// unless somebody else has the model mounted, too. open opens the large files of the model, in the order of their
// names; they are closed.
func (a *Ahead) Mounted(name string, mode func(context.Context) Mode, open func(context.Context) ([]*os.File, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx := a.ctx
	if ctx == nil {
		return
	}
	a.wait.Go(func() {
		m := mode(ctx)
		if m == Off {
			a.o.Log.Debug("a model is not read ahead for one of its users", "model", name)
			return
		}
		if !a.begin(name, m == On) {
			return
		}
		for {
			always, ok := a.next(ctx, name)
			if !ok {
				return
			}
			if err := a.follow(ctx, name, always, open); err != nil && ctx.Err() == nil {
				a.o.Log.Info("the files of a model are not read ahead", "model", name, "err", err)
			}
		}
	})
}

// begin requests that a model is followed. It reports whether the caller has to do that.
func (a *Ahead) begin(name string, always bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.names[name]
	if r == nil && len(a.names) == maxProcesses {
		return false
	}
	first := r == nil
	if first {
		r = &request{}
		a.names[name] = r
	}
	r.again = true
	r.always = r.always || always
	return first
}

// next returns what has been requested for a model since the last call, and false if that is nothing.
func (a *Ahead) next(ctx context.Context, name string) (always, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := *a.names[name]
	if !r.again || ctx.Err() != nil {
		delete(a.names, name)
		return false, false
	}
	*a.names[name] = request{}
	return r.always, true
}

func (a *Ahead) follow(ctx context.Context, name string, always bool, open func(context.Context) ([]*os.File, error)) error {
	files, err := open(ctx)
	end := sync.OnceFunc(func() {
		for _, f := range files {
			_ = f.Close() // only read
		}
	})
	defer end()
	if err != nil || len(files) == 0 {
		return err
	}
	if !always {
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
	end() // the process alone knows when a file is removed
	a.o.Log.Debug("follow the loader of a model", "model", name, "files", len(files), "pid", cmd.Process.Pid)
	text, _ := io.ReadAll(io.LimitReader(said, 4<<10)) // Wait returns why the process failed
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// requestTime returns how long the disk takes at least for a page of a file, or any time less than slow. The page
// cache is neither used nor filled. It returns errors.ErrUnsupported if the file system cannot do that.
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
