package lazy

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Fixed node numbers in each view. The number of the view is above them, shifted by viewShift.
const (
	rootNode   = 1
	sha256Node = 2
	firstDir   = 256 // sha256/00
	viewShift  = 9
	maxView    = 1<<(63-viewShift) - 1
	fileBit    = 1 << 63
)

// maxProbes limits the numbers tried for a file. Two digests with the same 63 bits do not occur by
// chance, but can be made.
const maxProbes = 8

// A node is a file known to the kernel. The kernel may have forgotten an inherited one.
type node struct {
	looked atomic.Pointer[time.Time] // when there was last no object; nil: never
	id     uint64
	view   uint64
	digest digest.Digest
	size   int64
	slot   int64
	saved  atomic.Bool              // the slot is written
	object atomic.Pointer[os.File]  // while a cached handle is open
	warned atomic.Pointer[struct{}] // an error was logged

	inherited bool // from an earlier process; its lookups are unknown

	// The rest is guarded by fileSystem.mu.
	lookups     int64 // lookups by the kernel, minus forgotten ones
	cached      int   // open handles that use the page cache
	passthrough int   // open handles that do not
	backing     int32 // passthrough id, 0 if none
}

// fileNode returns the number to try for an identity, after try failed attempts.
func fileNode(identity digest.Digest, try uint64) uint64 {
	raw, err := hex.DecodeString(identity.Encoded()[:16])
	if err != nil {
		panic("lazy: internal error: digest was not checked: " + err.Error())
	}
	var n uint64
	for _, b := range raw {
		n = n<<8 | uint64(b)
	}
	// All bits set is a node of the protocol code.
	if n = (n + try) | fileBit; n == ^uint64(0) {
		n = fileBit
	}
	return n
}

// dirNode returns the number of a directory below sha256, by name.
func dirNode(name string) (uint64, bool) {
	if len(name) != 2 || strings.ToLower(name) != name {
		return 0, false
	}
	b, err := hex.DecodeString(name)
	if err != nil {
		return 0, false
	}
	return firstDir + uint64(b[0]), true
}

// viewNode returns the number of the directory of a view, by name.
func viewNode(name string) (uint64, bool) {
	view, err := strconv.ParseUint(name, 10, 64)
	if err != nil || view == 0 || view > maxView || strconv.FormatUint(view, 10) != name {
		return 0, false
	}
	return view<<viewShift | rootNode, true
}

// fileDigest returns the digest of a name in a directory.
func fileDigest(dir uint64, name string) (digest.Digest, bool) {
	d, err := verify.ParseDigest(string(digest.SHA256) + ":" + name)
	if err != nil {
		return "", false
	}
	want, ok := dirNode(name[:2])
	return d, ok && want == dir
}

// node returns the node of a file for a lookup. It creates and saves the node if needed. It returns
// errdefs.ErrDataLoss if the file had another size before, and errdefs.ErrResourceExhausted if
// there are too many files.
func (fs *fileSystem) node(view uint64, d, identity digest.Digest, size int64) (*node, error) {
	n, err := fs.assign(view, d, identity, size)
	if err != nil {
		return nil, err
	}
	if n.size != size {
		fs.Forget(n.id, 1)
		return nil, fmt.Errorf("file %s has %d bytes, but had %d before: %w", d, size, n.size, errdefs.ErrDataLoss)
	}
	if n.saved.Load() {
		return n, nil
	}
	// Concurrent writes to the slot have the same content.
	if err := fs.state.saveNode(n); err != nil {
		fs.Forget(n.id, 1)
		return nil, err
	}
	n.saved.Store(true)
	return n, nil
}

// assign finds the node of an identity, or assigns it a free number and slot.
func (fs *fileSystem) assign(view uint64, d, identity digest.Digest, size int64) (*node, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for try := range uint64(maxProbes) {
		id := fileNode(identity, try)
		n, ok := fs.nodes[id]
		if !ok {
			if len(fs.nodes) >= maxNodes {
				fs.refused(LimitNodes)
				return nil, fmt.Errorf("limit %s: the kernel holds more than %d files of the lazy mount: %w", LimitNodes, maxNodes, errdefs.ErrResourceExhausted)
			}
			n = &node{id: id, view: view, digest: d, size: size, slot: fs.nextSlot, lookups: 1}
			if k := len(fs.freeNodes); k > 0 {
				n.slot, fs.freeNodes = fs.freeNodes[k-1], fs.freeNodes[:k-1]
			} else {
				fs.nextSlot++
			}
			fs.nodes[id] = n
			return n, nil
		}
		if n.view == view && n.digest == d {
			n.lookups++
			return n, nil
		}
	}
	return nil, fmt.Errorf("file %s: all of its node numbers are taken: %w", d, errdefs.ErrResourceExhausted)
}

// Forget handles the kernel's message that it has dropped a number of lookups of a node.
func (fs *fileSystem) Forget(id, lookups uint64) {
	fs.mu.Lock()
	n := fs.nodes[id]
	if n != nil {
		n.lookups -= int64(lookups)
	}
	unused := fs.drop(n)
	fs.mu.Unlock()
	if unused {
		fs.freeSlot(n)
	}
}

// drop removes a node that neither the kernel nor a handle uses, and reports whether it did. The
// caller holds fileSystem.mu, and then calls freeSlot without it.
func (fs *fileSystem) drop(n *node) bool {
	if n == nil || n.inherited || n.lookups > 0 || n.cached+n.passthrough > 0 || fs.nodes[n.id] != n {
		return false
	}
	delete(fs.nodes, n.id)
	return true
}

// freeSlot clears and frees the slot of a removed node. If the process ends before that, the next
// one inherits the node, which does no harm.
func (fs *fileSystem) freeSlot(n *node) {
	if err := fs.state.clearNode(n.slot); err != nil {
		fs.stats.stateErrors.Add(1)
		fs.log.Error("a node of the lazy mount cannot be removed", "digest", n.digest, "err", err)
		return
	}
	fs.mu.Lock()
	fs.freeNodes = append(fs.freeNodes, n.slot)
	fs.mu.Unlock()
}

// known returns a node by its number, or nil.
func (fs *fileSystem) known(id uint64) *node {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.nodes[id]
}

// lookAgain reports whether to check again if the file has become an object. Until then, reads from
// the source return the same bytes.
func (n *node) lookAgain() bool {
	last := n.looked.Load()
	if last != nil && time.Since(*last) <= 100*time.Millisecond {
		return false
	}
	now := time.Now()
	return n.looked.CompareAndSwap(last, &now)
}
