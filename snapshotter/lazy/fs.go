package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// entryTimeout is how long the kernel may cache attributes: content never changes. Missing names
// are not cached.
const entryTimeout = 24 * time.Hour

// resent is set in the id of a request that the kernel sends again.
const resent = 1 << 63

// fileSystem answers the requests of a read-only file system. Other operations are not implemented.
type fileSystem struct {
	fuse.RawFileSystem
	ctx     context.Context // of the Mount: cancels waiting reads
	source  Source
	state   *state
	log     *slog.Logger
	stats   counters
	device  *device // set before serving
	buffers *buffers

	closing       atomic.Bool
	noPassthrough atomic.Bool

	mu        sync.Mutex
	nodes     map[uint64]*node
	nextSlot  int64
	freeNodes []int64  // slots of nodes
	handles   []handle // by slot
	free      []uint32 // slots of handles
	callers   map[string]*caller
	owners    map[uint32]*caller // of handles, by slot, without handles of earlier processes
	objects   map[*node]struct{}

	refused func(limit string) // Options.Refused, never nil
}

// newFileSystem restores the nodes and handles of earlier processes.
func newFileSystem(ctx context.Context, o Options, st *state) (*fileSystem, error) {
	fs := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		ctx:           ctx,
		source:        o.Source,
		state:         st,
		log:           o.Log,
		buffers:       newBuffers(),
		nodes:         map[uint64]*node{},
		objects:       map[*node]struct{}{},
		callers:       map[string]*caller{},
		owners:        map[uint32]*caller{},
		refused:       o.Refused,
	}
	if fs.refused == nil {
		fs.refused = func(string) {}
	}
	fs.noPassthrough.Store(o.NoPassthrough || !st.rec.Passthrough)
	taken := map[int64]bool{}
	slots, err := st.loadNodes(func(n *node) {
		n.inherited = true
		fs.nodes[n.id], taken[n.slot] = n, true
	})
	if err != nil {
		return nil, err
	}
	fs.nextSlot = slots
	for slot := range slots {
		if !taken[slot] {
			fs.freeNodes = append(fs.freeNodes, slot)
		}
	}
	if fs.handles, err = st.loadHandles(); err != nil {
		return nil, err
	}
	for slot, h := range fs.handles {
		n := fs.nodes[h.node]
		switch {
		case h.mode == modeFree:
			fs.free = append(fs.free, uint32(slot))
		case n == nil:
			return nil, fmt.Errorf("handle %#x is of unknown node %#x: %w", h.fh, h.node, errdefs.ErrDataLoss)
		case h.mode == modePassthrough:
			n.passthrough++
			n.backing = h.backing
		default:
			n.cached++
		}
	}
	return fs, nil
}

// close closes the cached objects.
func (fs *fileSystem) close() error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var errs []error
	for n := range fs.objects {
		if f := n.object.Swap(nil); f != nil {
			errs = append(errs, f.Close())
		}
	}
	clear(fs.objects)
	return errors.Join(errs...)
}

func (fs *fileSystem) String() string { return "ballast" }

// Lookup finds a name. It answers after the node is saved.
func (fs *fileSystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	id, size, status := fs.find(in.NodeId, name)
	if !status.Ok() {
		return status
	}
	*out = fuse.EntryOut{NodeId: id, Generation: 1}
	if id < fileBit { // the identity of a file can change: see Source
		out.SetEntryTimeout(entryTimeout)
	}
	out.SetAttrTimeout(entryTimeout)
	attributes(&out.Attr, id, size)
	return fuse.OK
}

func (fs *fileSystem) find(dir uint64, name string) (id uint64, size int64, _ fuse.Status) {
	if dir >= fileBit {
		return 0, 0, fuse.ENOTDIR
	}
	view, dir := dir>>viewShift, dir&(1<<viewShift-1)
	switch {
	case dir == rootNode && name == "sha256":
		return view<<viewShift | sha256Node, 0, fuse.OK
	case dir == rootNode && view == 0:
		if id, ok := viewNode(name); ok {
			return id, 0, fuse.OK
		}
	case dir == sha256Node:
		if id, ok := dirNode(name); ok {
			return view<<viewShift | id, 0, fuse.OK
		}
	case dir >= firstDir:
		d, ok := fileDigest(dir, name)
		if !ok {
			break
		}
		size, identity, err := fs.source.LazyFile(view, d)
		if errdefs.IsNotFound(err) {
			break
		}
		if err != nil || size < 0 {
			fs.log.Error("file cannot be looked up", "digest", d, "size", size, "err", err)
			return 0, 0, fuse.EIO
		}
		n, err := fs.node(view, d, identity, size)
		if err != nil {
			fs.stats.stateErrors.Add(1)
			fs.log.Error("node cannot be created", "digest", d, "err", err)
			return 0, 0, fuse.EIO
		}
		return n.id, n.size, fuse.OK
	}
	return 0, 0, fuse.ENOENT
}

// attributes sets the same attributes in every process: fixed times, owned by root. Containers
// access the mount through overlayfs with the credentials of the mounter; other users have no
// access.
func attributes(a *fuse.Attr, id uint64, size int64) {
	*a = fuse.Attr{Ino: id, Mode: fuse.S_IFDIR | 0o700, Nlink: 2, Blksize: 4096}
	if id >= fileBit {
		a.Mode, a.Nlink = fuse.S_IFREG|0o644, 1
		a.Size = uint64(size)
		a.Blocks = (a.Size + 511) / 512
	}
}

// GetAttr answers for every node returned by Lookup, also of earlier processes.
func (fs *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	var size int64
	if in.NodeId >= fileBit {
		n := fs.known(in.NodeId)
		if n == nil {
			return fuse.Status(staleHandle)
		}
		size = n.size
	}
	out.SetTimeout(entryTimeout)
	attributes(&out.Attr, in.NodeId, size)
	return fuse.OK
}

// Read answers with all bytes up to the end of the file, or with an error: the kernel would fill a
// short answer with zeros. It sends the bytes itself and does not use buf.
func (fs *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n := fs.known(in.NodeId)
	if n == nil {
		return nil, fuse.Status(staleHandle)
	}
	off := int64(in.Offset)
	if off < 0 || off >= n.size || len(buf) == 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	size := int(min(int64(len(buf)), n.size-off))
	err := fs.read(cancel, n, off, size, func(f *os.File) error {
		return fs.buffers.with(size, func(p []byte) error {
			if _, err := f.ReadAt(p, off); err != nil {
				return err
			}
			_ = fs.device.send(in.Unique, p) // if it fails, the request was interrupted
			return nil
		})
	})
	switch {
	case err == nil:
		fs.stats.reads.Add(1)
		fs.stats.readBytes.Add(int64(size))
		return sent(size), fuse.OK
	case errors.Is(err, context.Canceled) && (fs.closing.Load() || isClosed(cancel)):
		fs.stats.interrupted.Add(1)
		return nil, fuse.EINTR
	}
	fs.stats.readErrors.Add(1)
	if n.warned.Swap(&struct{}{}) == nil { // logged once for each file
		fs.log.Error("file cannot be read", "digest", n.digest, "offset", in.Offset, "err", err)
	}
	return nil, fuse.EIO
}

// read calls send with a file that has the bytes: the object if the file is complete.
func (fs *fileSystem) read(cancel <-chan struct{}, n *node, off int64, size int, send func(*os.File) error) error {
	if n.object.Load() != nil || n.lookAgain() {
		if done, err := fs.readObject(n, send); done || err != nil {
			return err
		}
	}
	var err error
	if err = fs.await(cancel, n, off, size, send); err == nil || isClosed(cancel) || fs.closing.Load() {
		return err
	}
	// The file may have become complete in the meantime.
	if done, again := fs.readObject(n, send); done && again == nil {
		return nil
	}
	return err
}

// await waits for the bytes from the Source, and once more if they cannot be read.
func (fs *fileSystem) await(cancel <-chan struct{}, n *node, off int64, size int, send func(*os.File) error) error {
	for try := 0; ; try++ {
		fs.stats.waiting.Add(1)
		ctx := &readContext{Context: fs.ctx, cancel: cancel}
		f, done, err := fs.source.Await(ctx, n.view, n.digest, off, size)
		ctx.end()
		fs.stats.waiting.Add(-1)
		if err != nil {
			return err
		}
		err = send(f)
		if done(err); err == nil || try > 0 {
			return err
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sent is the result of a read that has been answered.
type sent int

// Readv implements fuse.ReadResult.
func (n sent) Readv([][]byte) (int, fuse.Status) { return int(n), fuse.OK }

func (n sent) Size() int                              { return int(n) }
func (n sent) Done()                                  {}
func (n sent) Bytes(buf []byte) ([]byte, fuse.Status) { return buf[:n], fuse.OK }

// readObject calls send with the object. It returns false if there is no object.
func (fs *fileSystem) readObject(n *node, send func(*os.File) error) (done bool, err error) {
	for {
		f := n.object.Load()
		own := f == nil
		if own {
			if f, err = fs.openObject(n); err != nil {
				return false, err
			}
			if f == nil {
				return false, nil
			}
			if fs.cache(n, f) {
				own = false
			}
		}
		err = send(f)
		if own {
			_ = f.Close() // opened for reading
		}
		if errors.Is(err, os.ErrClosed) { // removed from the cache in the meantime
			continue
		}
		fs.stats.objectReads.Add(1)
		return true, err
	}
}

// openObject opens the object of a node. It returns nil if the file is not complete.
func (fs *fileSystem) openObject(n *node) (*os.File, error) {
	f, err := fs.source.OpenObject(n.view, n.digest)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.Size() != n.size {
		return nil, errors.Join(fmt.Errorf("object %s does not have %d bytes: %w", n.digest, n.size, errdefs.ErrDataLoss), err, f.Close())
	}
	return f, nil
}

// maxObjects limits the objects held open for cached handles. Open objects keep their disk space
// when they are evicted, so they are closed with the last handle.
const maxObjects = 256

// cache keeps the open object of a node that has an open handle. It reports whether it took f.
func (fs *fileSystem) cache(n *node, f *os.File) bool {
	var old *os.File
	fs.mu.Lock()
	took := n.cached > 0 && n.object.CompareAndSwap(nil, f)
	if took {
		if len(fs.objects) >= maxObjects {
			for other := range fs.objects { // an arbitrary one
				old = other.object.Swap(nil)
				delete(fs.objects, other)
				break
			}
		}
		fs.objects[n] = struct{}{}
	}
	fs.mu.Unlock()
	if old != nil {
		_ = old.Close() // opened for reading
	}
	return took
}

// Access is not implemented: the kernel checks modes itself.
func (fs *fileSystem) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

// StatFs returns no numbers: the space belongs to the store.
func (fs *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	*out = fuse.StatfsOut{Bsize: 4096, Frsize: 4096, NameLen: 255}
	return fuse.OK
}

// OpenDir succeeds for directories, which are empty.
func (fs *fileSystem) OpenDir(_ <-chan struct{}, _ *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

// ReadDir returns no entries: overlayfs only looks up names.
func (fs *fileSystem) ReadDir(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status {
	return fuse.OK
}

// A readContext ends with its parent or when cancel is closed. It starts a goroutine only when Done
// is called: most reads do not wait.
type readContext struct {
	context.Context
	cancel <-chan struct{}

	mu   sync.Mutex // guards both and stop
	both context.Context
	stop context.CancelFunc
}

// Done implements context.Context.
func (c *readContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.both == nil {
		c.both, c.stop = context.WithCancel(c.Context)
		go func(done <-chan struct{}, stop func()) { // ends with the read
			select {
			case <-c.cancel:
				stop()
			case <-done:
			}
		}(c.both.Done(), c.stop)
	}
	return c.both.Done()
}

// Err implements context.Context.
func (c *readContext) Err() error {
	if isClosed(c.cancel) {
		return context.Canceled
	}
	return c.Context.Err()
}

// end stops the goroutine of Done.
func (c *readContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
}
