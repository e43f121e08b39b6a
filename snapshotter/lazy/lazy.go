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

// DefaultReadAhead is how many bytes the kernel reads ahead: two requests, so that there is one to answer while the
// bytes of the other are used. It need not hide the latency of a registry: the Source brings what lies ahead
// itself. A page fault of a random access reads as much around it, which speaks against more.
const DefaultReadAhead = 2 << 20 // 2 MiB

// A Source has the bytes. What can be read of a digest depends on the view that it is read in, a number;
// 0 is the common view.
type Source interface {
	// LazyFile returns the size in bytes of a file that can be read: it is complete, or its
	// parts can be brought. identity says what is shown: the digest of a file that is complete,
	// and another digest for each other way to bring its parts, whose bytes may turn out not
	// to be those of d. Pages of one identity are never shown for another. It returns
	// errdefs.ErrNotFound for any other file, and does not wait.
	LazyFile(view uint64, d digest.Digest) (size int64, identity digest.Digest, err error)
	// Await waits until n bytes of a file from off on can be read, all of which it has, or until ctx ends. It
	// returns an open file that has these bytes at the same place, verified, and others that may not be;
	// done is to be called when they were read.
	Await(ctx context.Context, view uint64, d digest.Digest, off int64, n int) (f *os.File, done func(), err error)
	// OpenObject opens the complete, verified file. It returns errdefs.ErrNotFound if it
	// is not complete, or not there for the view.
	OpenObject(view uint64, d digest.Digest) (*os.File, error)
}

// Options of a mount. Dir, StateDir and Source are required.
type Options struct {
	// Dir is where the file system is mounted. It is made if it is not there.
	Dir string
	// Apart is where it is mounted instead if the kernel can not id-map it (Linux before 6.12). For a
	// container with users of its own, containerd id-maps a directory that all layers are below, with all
	// that is mounted there, or fails. So a mount that can be is beside the other layers, and one that can
	// not is elsewhere, in nobody's way. Empty means Dir.
	Apart string
	// StateDir is where the state is that outlives the daemon; nothing else may be in it.
	StateDir string
	Source   Source
	// Holder says who keeps the connection while the daemon does not run. The zero value
	// means nobody: when the process ends, the mount is dead.
	Holder fdstore.Options
	// ReadAhead is in bytes. Zero means DefaultReadAhead.
	ReadAhead int64
	// NoPassthrough has even complete files read through the daemon.
	NoPassthrough bool
	// NoIDMap makes a new mount as older kernels do, which can not id-map it.
	NoIDMap bool
	// Refused is called with the name of a limit when it has refused something; nil does nothing.
	Refused func(limit string)
	// Log gets what the mount has to say. Nil means nothing.
	Log *slog.Logger
}

// A Mount is a file system that is served.
type Mount struct {
	dir    string
	log    *slog.Logger
	conn   *connection
	state  *state
	keeper *fdstore.Keeper
	cancel context.CancelFunc // ends waiting reads
	closed sync.Once
}

// Start mounts and serves the file system. If the mount of an earlier process is still there
// and its connection was kept, Start takes it over, and readers that wait go on; a dead mount
// is replaced. One that is not where it belongs, such as one of an earlier version, is moved under those who
// use it. Only one process may serve a mount: the caller sees to it.
// The mount is served until Close or Unmount.
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
	k := fdstore.New(o.Holder, namePrefix, o.Log)
	m, err := resume(at, o, k)
	if err != nil {
		o.Log.Info("no lazy mount is taken over", "dir", at.dir, "reason", err)
		if err = detachAll(at.all(o.StateDir), o.Log); err == nil {
			m, err = mountNew(at.dir, o, k)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lazy mount %s: %w", at.dir, err), k.Close())
	}
	if err := m.settle(at); err != nil {
		o.Log.Error("lazy mount is not where it belongs: pods with user namespaces may not start", "dir", m.dir, "err", err)
	}
	if err := setReadAhead(m.state.rec.Dev, o.ReadAhead); err != nil {
		o.Log.Warn("read-ahead of the lazy mount is not set, reads of missing parts are slow", "err", err)
	}
	return m, nil
}

// resolveDir returns dir without symbolic links. It does not touch dir itself, because that
// can be a mount that nobody serves.
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

// resume takes over the mount that is described in StateDir. The error says why it can not.
func resume(at places, o Options, k *fdstore.Keeper) (*Mount, error) {
	kept := k.Take()
	defer func() {
		for _, f := range kept {
			_ = f.Close() // copies
		}
	}()
	rec, err := readRecord(o.StateDir)
	if err != nil {
		return nil, err
	}
	if !at.owns(rec) {
		return nil, fmt.Errorf("mount %s is of another root", rec.ID)
	}
	name := rec.name()
	f := kept[name]
	if f == nil {
		return nil, fmt.Errorf("nobody kept the connection of mount %s", rec.ID)
	}
	if err := isAlive(f, rec); err != nil {
		return nil, err
	}
	st, err := openState(o.StateDir, rec)
	if err != nil {
		return nil, err
	}
	delete(kept, name) // ours now
	for other := range kept {
		k.Drop(other) // of mounts that are no more
	}
	m, err := serve(rec.Dir, o, f, st)
	if err != nil {
		return nil, errors.Join(err, st.close())
	}
	m.keeper = k
	m.conn.fs.stats.takeovers.Add(1)
	if !rec.Resend {
		o.Log.Warn("this kernel can not send requests again: readers that waited for the previous daemon hang until they are killed (Linux 6.9)")
	} else if err := m.conn.resend(); err != nil {
		o.Log.Error("the kernel does not send requests again, readers that waited hang until they are killed", "err", err)
	}
	nodes := len(m.conn.fs.nodes)
	m.begin()
	o.Log.Info("lazy mount is taken over", "dir", rec.Dir, "id", rec.ID, "nodes", nodes)
	return m, nil
}

// mountNew mounts at dir, where nothing is.
func mountNew(dir string, o Options, k *fdstore.Keeper) (*Mount, error) {
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
	o.Log.Info("lazy mount is new", "dir", dir, "id", rec.ID, "passthrough", rec.Passthrough, "resend", rec.Resend)
	return m, nil
}

// begin serves, and hands the connection to the keeper. One that was taken over is kept
// already, but maybe by a keeper that nobody watches yet.
func (m *Mount) begin() {
	m.conn.start()
	if err := forgetPoll(m.dir); err != nil {
		m.log.Warn("this process must not open files of the lazy mount itself", "err", err)
	}
	if err := m.keeper.Keep(m.state.rec.name(), m.conn.raw); err != nil {
		// Better a mount that dies with the daemon than none.
		m.log.Error("nobody keeps the lazy mount: it will not outlive this process, unless another attempt succeeds", "err", err)
	}
}

// serve prepares serving of an initialised connection. f is the Mount's if there is no error.
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

// Dir returns where the file system is mounted, without symbolic links.
func (m *Mount) Dir() string { return m.dir }

// IDMap says whether the kernel can id-map mounts of it.
func (m *Mount) IDMap() bool { return m.state.rec.idMappable() }

// Done returns a channel that is closed when the mount is no longer served: after Close, or
// because somebody unmounted it.
func (m *Mount) Done() <-chan struct{} { return m.conn.done }

// Close stops serving and leaves the connection to the keeper: readers block until the next
// Start. If nobody keeps it, and nobody can be found who does, Close does what Unmount does.
func (m *Mount) Close() error {
	return m.stop(func() error {
		if m.keeper.KeepNow(m.state.rec.name(), m.conn.raw) {
			return nil
		}
		return m.unmount()
	})
}

// Unmount stops serving, unmounts and tells the keeper to let go. Files that are in use give
// errors from then on.
func (m *Mount) Unmount() error { return m.stop(m.unmount) }

func (m *Mount) unmount() error {
	err := unix.Unmount(m.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) { // somebody was faster
		err = nil
	}
	m.keeper.Drop(m.state.rec.name())
	return errors.Join(err, removeState(m.state.dir))
}

// stop ends serving. last runs once nobody serves, with the connection still open.
func (m *Mount) stop(last func() error) (err error) {
	m.closed.Do(func() {
		m.keeper.Unwatch()
		m.conn.fs.closing.Store(true)
		m.cancel()
		err = m.conn.stop()
		err = errors.Join(err, last(), m.conn.close(), m.conn.fs.close(), m.state.close(), m.keeper.Close())
	})
	return err
}

// Stats returns what was done since Start.
func (m *Mount) Stats() Stats {
	s := m.conn.fs.stats.snapshot()
	m.conn.fs.mu.Lock()
	defer m.conn.fs.mu.Unlock()
	s.Nodes = int64(len(m.conn.fs.nodes))
	return s
}
