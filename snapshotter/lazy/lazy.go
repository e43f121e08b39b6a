package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// DefaultReadAhead is the read-ahead of the kernel in bytes: two requests, so that one is answered
// while the bytes of the other are used. It does not have to hide the latency of a registry, since
// the Source fetches ahead itself. A larger value slows random access, because a page fault reads
// as much around the page.
const DefaultReadAhead = 2 << 20 // 2 MiB

// A Source has the bytes. What can be read of a digest depends on the view, a number; 0 is the
// common view.
type Source interface {
	// LazyFile returns the size in bytes of a readable file: it is complete, or its parts can be
	// fetched. identity is the digest of a complete file, and another digest for every other way to
	// fetch its parts, whose bytes may turn out not to match d. Pages of one identity are never
	// shown for another. LazyFile does not wait, and returns errdefs.ErrNotFound for any other
	// file.
	LazyFile(view uint64, d digest.Digest) (size int64, identity digest.Digest, err error)
	// Await waits until the n bytes of a file from off on, all within the file, are readable, or
	// until ctx ends. It returns an open file that has these bytes, verified, at the same offset;
	// other bytes of it may not be valid. The caller calls done after reading, with the error of that,
	// if any: the next Await may get these bytes from elsewhere.
	Await(ctx context.Context, view uint64, d digest.Digest, off int64, n int) (f *os.File, done func(error), err error)
	// OpenObject opens the complete, verified file. It returns errdefs.ErrNotFound if the file is
	// not complete, or not in the view.
	OpenObject(view uint64, d digest.Digest) (*os.File, error)
}

// Options of a mount. Dir, StateDir and Source are required.
type Options struct {
	// Dir is the mount point. It is created if needed.
	Dir string
	// Apart is the mount point if the kernel cannot id-map the mount (Linux before 6.12). For a
	// container with its own users, containerd id-maps a directory above all layers, with all
	// mounts below it, or fails. A mount that can be id-mapped is therefore beside the other
	// layers, and one that cannot is elsewhere. Empty means Dir.
	Apart string
	// StateDir is the directory of the state that outlives the daemon. It must contain nothing
	// else.
	StateDir string
	Source   Source
	// Holder configures where the connection is kept while the daemon does not run. With the zero
	// value the mount is dead when the process ends.
	Holder fdstore.Options
	// ReadAhead is in bytes. Zero means DefaultReadAhead.
	ReadAhead int64
	// NoPassthrough makes reads of complete files go through the daemon.
	NoPassthrough bool
	// NoIDMap makes a new mount that cannot be id-mapped, as on older kernels.
	NoIDMap bool
	// Refused is called with the name of a limit when an operation exceeds it. It may be nil.
	Refused func(limit string)
	// Log is the logger; nil discards.
	Log *slog.Logger
}

// A Mount is a served file system.
type Mount struct {
	dir    string
	log    *slog.Logger
	conn   *connection
	state  *state
	keeper *fdstore.Keeper
	cancel context.CancelFunc // cancels waiting reads
	closed sync.Once
}

// Start mounts and serves the file system until Close or Unmount. If the mount of an earlier
// process exists and its connection was kept, Start takes it over and waiting reads continue. A
// dead mount is replaced. The caller makes sure that only one process serves a mount.
func Start(o Options) (*Mount, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ReadAhead == 0 {
		o.ReadAhead = DefaultReadAhead
	}
	at, err := o.places()
	if err != nil {
		return nil, fmt.Errorf("lazy mount: %w", err)
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("lazy mount: %w", err)
	}
	k := fdstore.New(o.Holder, o.Log)
	m, err := resume(at, o, k)
	if err != nil {
		o.Log.Info("no lazy mount is taken over", "dir", at.dir, "reason", err)
		if err = detachAll(at.all(o.StateDir), o.Log); err == nil {
			m, err = mountNew(at, o, k)
		}
	}
	if err != nil {
		k.Unwatch()
		return nil, fmt.Errorf("lazy mount %s: %w", at.dir, err)
	}
	if err := setReadAhead(m.state.rec.Dev, o.ReadAhead); err != nil {
		o.Log.Warn("read-ahead of the lazy mount is not set; reads of missing parts are slow", "err", err)
	}
	return m, nil
}

// resolveDir returns dir without symbolic links. It does not access dir itself, which may be a
// mount that no process serves.
func resolveDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// resume takes over the mount described in StateDir. The error says why it cannot.
func resume(at places, o Options, k *fdstore.Keeper) (*Mount, error) {
	rec, err := readRecord(o.StateDir)
	if err == nil && !at.owns(rec) {
		err = fmt.Errorf("mount %s belongs to another root", rec.ID)
	}
	kept := k.Take(err == nil && sinceBoot(o.StateDir))
	defer func() {
		for _, f := range kept {
			_ = f.Close() // copies
		}
	}()
	if err != nil {
		return nil, err
	}
	name := rec.name()
	f := kept[name]
	if f == nil {
		return nil, fmt.Errorf("the connection of mount %s was not kept", rec.ID)
	}
	if err := show(kept[name+fdstore.MountSuffix], rec); err != nil {
		return nil, err
	}
	if err := isAlive(f, rec); err != nil {
		return nil, err
	}
	st, err := openState(o.StateDir, rec)
	if err != nil {
		return nil, err
	}
	delete(kept, name) // kept by the Mount
	for other := range kept {
		k.Drop(other) // of mounts that no longer exist
	}
	m, err := serve(rec.Dir, o, f, st)
	if err != nil {
		return nil, errors.Join(err, st.close())
	}
	m.keeper = k
	m.conn.fs.stats.takeovers.Add(1)
	if !rec.Resend {
		o.Log.Warn("this kernel does not support resending requests (Linux 6.9): readers that waited for the previous daemon hang until they are killed")
	} else if err := m.conn.resend(); err != nil {
		o.Log.Error("the kernel does not resend requests: readers that waited for the previous daemon hang until they are killed", "err", err)
	}
	nodes := len(m.conn.fs.nodes)
	m.begin()
	o.Log.Info("lazy mount taken over", "dir", rec.Dir, "id", rec.ID, "nodes", nodes)
	return m, nil
}

// mountNew mounts at one of the places, where nothing is mounted.
func mountNew(at places, o Options, k *fdstore.Keeper) (*Mount, error) {
	dir := at.dir
	k.DropAll()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := mountFuse(dir)
	if err != nil {
		return nil, err
	}
	undo := func(err error) error {
		return errors.Join(err, f.Close(), unix.Unmount(dir, unix.MNT_DETACH))
	}
	rec, err := handshake(dir, o, f)
	if err != nil {
		return nil, undo(err)
	}
	if rec.NoIDMap && at.apart != "" {
		if err := move(dir, at.apart); err != nil {
			return nil, undo(err)
		}
		dir, rec.Dir, rec.Home = at.apart, at.apart, at.dir
	}
	st, err := createState(o.StateDir, rec)
	if err != nil {
		return nil, undo(err)
	}
	m, err := serve(dir, o, f, st)
	if err != nil {
		return nil, undo(errors.Join(err, st.close()))
	}
	m.keeper = k
	m.begin()
	o.Log.Info("lazy mount created", "dir", dir, "id", rec.ID, "passthrough", rec.Passthrough, "resend", rec.Resend)
	return m, nil
}

// begin serves the mount and hands the connection to the keeper. A connection that was taken over
// is already kept, but possibly by a keeper that this process does not watch yet.
func (m *Mount) begin() {
	m.conn.start()
	if err := forgetPoll(m.dir); err != nil {
		m.log.Warn("this process must not open files of the lazy mount", "err", err)
	}
	if err := m.keeper.Keep(m.state.rec.name(), m.conn.raw); err != nil {
		// A mount that dies with the daemon is better than none.
		m.log.Error("the lazy mount is not kept: unless a later attempt succeeds, it ends with this process", "err", err)
	}
}

// serve prepares serving an initialised connection. Without an error, the Mount owns f.
func serve(dir string, o Options, f *os.File, st *state) (*Mount, error) {
	ctx, cancel := context.WithCancel(context.Background())
	fs, err := newFileSystem(ctx, o, st)
	if err != nil {
		cancel()
		return nil, err
	}
	c, err := newConnection(fs, f, o.Log)
	if err != nil {
		cancel()
		return nil, err
	}
	return &Mount{dir: dir, log: o.Log, conn: c, state: st, cancel: cancel}, nil
}

// Dir returns the mount point, without symbolic links.
func (m *Mount) Dir() string { return m.dir }

// IDMap reports whether the kernel can id-map the mount.
func (m *Mount) IDMap() bool { return !m.state.rec.NoIDMap }

// Done returns a channel that is closed when the mount is no longer served: after Close, or after
// it was unmounted.
func (m *Mount) Done() <-chan struct{} { return m.conn.done }

// Close stops serving and leaves the connection and the mount to the keeper; reads block until the
// next Start. If no keeper takes the connection, Close unmounts like Unmount.
func (m *Mount) Close() error {
	return m.stop(func() error {
		if m.keeper.KeepNow(m.state.rec.name(), m.conn.raw) {
			if err := m.hide(); err != nil {
				m.log.Warn("the lazy mount stays at its directory; programs that look into it wait for the next daemon", "dir", m.dir, "err", err)
			}
			return nil
		}
		return m.unmount()
	})
}

// Unmount stops serving, unmounts, and drops the connection from the keeper. Files in use return
// errors from then on.
func (m *Mount) Unmount() error { return m.stop(m.unmount) }

func (m *Mount) unmount() error {
	err := unix.Unmount(m.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) { // already unmounted
		err = nil
	}
	m.keeper.Drop(m.state.rec.name())
	return errors.Join(err, removeState(m.state.dir))
}

// stop ends serving. last runs after the last request, with the connection still open.
func (m *Mount) stop(last func() error) (err error) {
	m.closed.Do(func() {
		m.keeper.Unwatch()
		m.conn.fs.closing.Store(true)
		m.cancel()
		err = m.conn.stop()
		err = errors.Join(err, last(), m.conn.close(), m.conn.fs.close(), m.state.close())
	})
	return err
}

// Stats returns the counters since Start.
func (m *Mount) Stats() Stats {
	s := m.conn.fs.stats.snapshot()
	m.conn.fs.mu.Lock()
	defer m.conn.fs.mu.Unlock()
	s.Nodes = int64(len(m.conn.fs.nodes))
	return s
}
