package lazy

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// staleHandle is the answer for an unknown node or handle.
const staleHandle = unix.ESTALE

// Open opens a file with passthrough if the file is complete and no cached handle of it is open. It
// answers after the handle is saved.
func (fs *fileSystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := fs.known(in.NodeId)
	if n == nil {
		return fuse.Status(staleHandle)
	}
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return fuse.EROFS
	}
	h, ok := handle{}, false
	if in.Unique&resent != 0 {
		h, ok = fs.answered(in.Unique &^ resent)
	}
	if !ok {
		var status fuse.Status
		if h, status = fs.open(n, in.Unique&^resent, callerOf(in.Pid)); !status.Ok() {
			return status
		}
	}
	fs.stats.opens.Add(1)
	*out = fuse.OpenOut{Fh: h.fh, OpenFlags: fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH}
	if h.mode == modePassthrough {
		fs.stats.passthroughOpens.Add(1)
		out.OpenFlags = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH
		out.BackingID = h.backing
	}
	return fuse.OK
}

// answered finds the handle that an earlier process made for a request, perhaps without answering.
func (fs *fileSystem) answered(unique uint64) (handle, bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	i := slices.IndexFunc(fs.handles, func(h handle) bool { return h.mode != modeFree && h.unique == unique })
	if i < 0 {
		return handle{}, false
	}
	return fs.handles[i], true
}

// open makes a handle and saves it.
func (fs *fileSystem) open(n *node, unique uint64, group string) (handle, fuse.Status) {
	h := handle{node: n.id, unique: unique}
	if !fs.join(n, &h) {
		backing, err := fs.register(n)
		if err != nil {
			if errdefs.IsNotFound(err) {
				return h, fuse.ENOENT
			}
			fs.stats.readErrors.Add(1)
			fs.log.Error("file cannot be opened", "digest", n.digest, "err", err)
			return h, fuse.EIO
		}
		if !fs.decide(n, &h, backing) && backing != 0 {
			fs.device.unregister(backing)
		}
	}
	err := fs.allot(&h, group)
	if err != nil {
		fs.leave(n, h)
	} else if err = fs.state.saveHandle(h); err != nil {
		fs.release(h.fh)
	}
	if err != nil {
		fs.stats.stateErrors.Add(1)
		if n.warned.Swap(&struct{}{}) == nil {
			fs.log.Error("file cannot be opened", "digest", n.digest, "err", err)
		}
		return h, fuse.Status(unix.ENFILE)
	}
	return h, fuse.OK
}

// join opens a node in the same mode as its open handles. It returns false if there are none.
func (fs *fileSystem) join(n *node, h *handle) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return n.join(h)
}

// join requires fileSystem.mu.
func (n *node) join(h *handle) bool {
	switch {
	case n.passthrough > 0:
		n.passthrough++
		h.mode, h.backing = modePassthrough, n.backing
	case n.cached > 0:
		n.cached++
		h.mode = modeCached
	default:
		return false
	}
	return true
}

// decide opens a node that was not open when backing was registered, unless a concurrent call was
// faster. It reports whether backing is in use now.
func (fs *fileSystem) decide(n *node, h *handle, backing int32) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if n.join(h) {
		return false
	}
	if backing == 0 {
		n.cached++
		h.mode = modeCached
		return false
	}
	n.passthrough, n.backing = 1, backing
	h.mode, h.backing = modePassthrough, backing
	return true
}

// register returns the backing id of a complete file, or 0 if the file must be read through the
// daemon. It returns errdefs.ErrNotFound if the file does not exist.
func (fs *fileSystem) register(n *node) (int32, error) {
	f, err := fs.openObject(n)
	if err != nil {
		return 0, err
	}
	if f == nil {
		size, _, err := fs.source.LazyFile(n.view, n.digest)
		if err == nil && size != n.size {
			err = fmt.Errorf("file %s has %d bytes, but had %d before: %w", n.digest, size, n.size, errdefs.ErrDataLoss)
		}
		return 0, err
	}
	defer f.Close() // the kernel has its own reference
	if fs.noPassthrough.Load() {
		return 0, nil
	}
	id, err := fs.device.register(f)
	if err != nil {
		if !fs.noPassthrough.Swap(true) {
			fs.log.Warn("complete files are read through the daemon: the kernel refuses passthrough", "digest", n.digest, "err", err)
		}
		return 0, nil
	}
	return id, nil
}

// A caller is a control group, such as a container, whose processes have files open.
type caller struct {
	name    string
	handles int // guarded by fileSystem.mu
}

// A caller may have minHandles files open, or more, up to a fraction of the free handles: 4096 if
// all are free. It therefore takes 240 containers to use the handles of others.
const (
	minHandles  = 256
	handleShare = 64
)

// maxControlGroup limits the name of a control group, in bytes.
const maxControlGroup = 4096

// callerOf returns the control groups of a process that waits for an answer, or "" if they are
// unknown.
func callerOf(pid uint32) string {
	f, err := os.Open("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxControlGroup))
	if err != nil {
		return ""
	}
	return string(p)
}

// allot assigns a number to a handle.
func (fs *fileSystem) allot(h *handle, group string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	c := fs.callers[group]
	if c == nil {
		c = &caller{name: group}
	}
	left := maxHandles - len(fs.handles) + len(fs.free)
	if c.handles >= max(minHandles, left/handleShare) || left == 0 {
		fs.refused(LimitHandles)
		return fmt.Errorf("limit %s: %d files are open in one container, and %d handles of the lazy mount are free: %w", LimitHandles, c.handles, left, errdefs.ErrResourceExhausted)
	}
	slot := uint64(len(fs.handles))
	if k := len(fs.free); k > 0 {
		slot = uint64(fs.free[k-1])
		fs.free = fs.free[:k-1]
	} else {
		fs.handles = append(fs.handles, handle{fh: slot})
	}
	h.fh = fs.handles[slot].fh + 1<<32
	fs.handles[slot] = *h
	fs.owners[uint32(slot)], fs.callers[group] = c, c
	c.handles++
	return nil
}

// disown removes a handle from its caller. It requires fileSystem.mu.
func (fs *fileSystem) disown(slot uint32) {
	c := fs.owners[slot]
	if c == nil {
		return
	}
	delete(fs.owners, slot)
	if c.handles--; c.handles == 0 {
		delete(fs.callers, c.name)
	}
}

// Release closes a handle. A second release of the same handle has no effect.
func (fs *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { fs.release(in.Fh) }

func (fs *fileSystem) release(fh uint64) {
	slot := uint32(fh)
	fs.mu.Lock()
	if int(slot) >= len(fs.handles) || fs.handles[slot].fh != fh || fs.handles[slot].mode == modeFree {
		fs.mu.Unlock()
		return
	}
	h := fs.handles[slot]
	n := fs.nodes[h.node]
	fs.handles[slot].mode = modeFree
	fs.disown(slot)
	fs.mu.Unlock()
	// Written to disk first: a successor may treat a handle as closed only if the kernel has closed
	// it.
	if err := fs.state.saveHandle(handle{fh: fh}); err != nil {
		fs.stats.stateErrors.Add(1)
		fs.log.Error("handle cannot be marked as closed", "digest", n.digest, "err", err)
	}
	fs.leave(n, h)
	fs.mu.Lock()
	fs.free = append(fs.free, slot)
	fs.mu.Unlock()
}

// leave reverts join or decide.
func (fs *fileSystem) leave(n *node, h handle) {
	var backing int32
	fs.mu.Lock()
	if h.mode == modePassthrough {
		if n.passthrough--; n.passthrough == 0 {
			backing, n.backing = n.backing, 0
		}
	} else {
		n.cached--
	}
	object := n.object.Load()
	if n.cached > 0 {
		object = nil
	} else {
		n.object.Store(nil)
		delete(fs.objects, n)
	}
	unused := fs.drop(n)
	fs.mu.Unlock()
	if unused {
		fs.freeSlot(n)
	}
	if backing != 0 {
		fs.device.unregister(backing)
	}
	if object != nil {
		_ = object.Close() // opened for reading
	}
}
