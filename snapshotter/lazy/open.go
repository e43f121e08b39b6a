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

// staleHandle is the answer for a node or handle that nobody knows.
const staleHandle = unix.ESTALE

// Open opens a file by passthrough if it is complete and no cached handle of it is open. It
// is answered after the handle is saved.
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

// answered finds the handle that an earlier process made for a request but maybe could not
// tell the kernel.
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
func (fs *fileSystem) open(n *node, unique uint64, who string) (handle, fuse.Status) {
	h := handle{node: n.id, unique: unique}
	if !fs.join(n, &h) {
		backing, err := fs.register(n)
		if err != nil {
			if errdefs.IsNotFound(err) {
				return h, fuse.ENOENT
			}
			fs.stats.readErrors.Add(1)
			fs.log.Error("file can not be opened", "digest", n.digest, "err", err)
			return h, fuse.EIO
		}
		if !fs.decide(n, &h, backing) && backing != 0 {
			fs.device.unregister(backing)
		}
	}
	err := fs.allot(&h, who)
	if err != nil {
		fs.leave(n, h)
	} else if err = fs.state.saveHandle(h); err != nil {
		fs.release(h.fh)
	}
	if err != nil {
		fs.stats.stateErrors.Add(1)
		if n.warned.Swap(&struct{}{}) == nil {
			fs.log.Error("file can not be opened", "digest", n.digest, "err", err)
		}
		return h, fuse.Status(unix.ENFILE)
	}
	return h, fuse.OK
}

// join opens a node the way it is open already. It returns false if it is not.
func (fs *fileSystem) join(n *node, h *handle) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return n.join(h)
}

// join is for who holds fileSystem.mu.
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

// decide opens a node that was not open when backing was registered; somebody may have been
// faster. It says whether backing is in use now.
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

// register returns the backing id of a complete file, or 0 if it is to be read through the
// daemon. It returns errdefs.ErrNotFound if the file is not there at all.
func (fs *fileSystem) register(n *node) (int32, error) {
	f, err := fs.openObject(n)
	if err != nil {
		return 0, err
	}
	if f == nil {
		size, _, err := fs.source.LazyFile(n.view, n.digest)
		if err == nil && size != n.size {
			err = fmt.Errorf("file %s has %d bytes, and had %d before: %w", n.digest, size, n.size, errdefs.ErrDataLoss)
		}
		return 0, err
	}
	defer f.Close() // the kernel has its own
	if fs.noPassthrough.Load() {
		return 0, nil
	}
	id, err := fs.device.register(f)
	if err != nil {
		if !fs.noPassthrough.Swap(true) {
			fs.log.Warn("complete files are read through the daemon: the kernel does not let them through", "digest", n.digest, "err", err)
		}
		return 0, nil
	}
	return id, nil
}

// A caller has files open: the processes of one control group, such as a container.
type caller struct {
	name    string
	handles int // guarded by fileSystem.mu
}

// A caller may have minHandles files open, and more up to a part of the handles that nobody has: 4096 of
// them when there are all. So it takes 240 containers to take those of others.
const (
	minHandles  = 256
	handleShare = 64
)

// maxControlGroup is the longest name of a control group, in bytes.
const maxControlGroup = 4096

// callerOf returns the control groups of a process that waits for an answer, or "" if they are not known.
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

// allot gives a handle its number.
func (fs *fileSystem) allot(h *handle, who string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	c := fs.callers[who]
	if c == nil {
		c = &caller{name: who}
	}
	left := maxHandles - len(fs.handles) + len(fs.free)
	if c.handles >= max(minHandles, left/handleShare) || left == 0 {
		fs.refused(LimitHandles)
		return fmt.Errorf("limit %s: %d files are open in one container, %d of the lazy mount are left: %w", LimitHandles, c.handles, left, errdefs.ErrResourceExhausted)
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
	fs.owners[uint32(slot)], fs.callers[who] = c, c
	c.handles++
	return nil
}

// disown takes a handle from its caller. It is for who holds fileSystem.mu.
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

// Release closes a handle. One that is not open is left alone: the request came twice.
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
	// First on disk: a successor may think a handle closed that is open only if the
	// kernel has closed it, which it has.
	if err := fs.state.saveHandle(handle{fh: fh}); err != nil {
		fs.stats.stateErrors.Add(1)
		fs.log.Error("closing can not be recorded", "digest", n.digest, "err", err)
	}
	fs.leave(n, h)
	fs.mu.Lock()
	fs.free = append(fs.free, slot)
	fs.mu.Unlock()
}

// leave undoes what join or decide did.
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
		_ = object.Close() // only read from
	}
}
