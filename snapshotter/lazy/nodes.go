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

// Numbers of the nodes that are always there, in each view: those of a view have its number above
// viewShift.
const (
	rootNode   = 1
	sha256Node = 2
	firstDir   = 256 // sha256/00
	viewShift  = 9
	maxView    = 1<<(63-viewShift) - 1
	fileBit    = 1 << 63
)

// maxProbes is how many numbers a file may try. Two digests with the same 63 bits do not
// happen by chance, but can be made.
const maxProbes = 8

// A node is a file that the kernel knows, or once knew.
type node struct {
	looked atomic.Int64 // when there was no object, in Unix nanoseconds
	id     uint64
	view   uint64
	digest digest.Digest
	size   int64
	slot   int64
	saved  atomic.Bool              // the slot is written
	object atomic.Pointer[os.File]  // while a cached handle is open
	warned atomic.Pointer[struct{}] // an error was logged

	// The rest is guarded by fileSystem.mu.
	cached      int   // open handles that go through the page cache
	passthrough int   // open handles that do not
	backing     int32 // the id of passthrough, 0 if none
}

// fileNode returns the number to try first, or after tries others, for an identity.
func fileNode(identity digest.Digest, try uint64) uint64 {
	raw, err := hex.DecodeString(identity.Encoded()[:16])
	if err != nil {
		panic("lazy: internal error: digest was not checked: " + err.Error())
	}
	var n uint64
	for _, b := range raw {
		n = n<<8 | uint64(b)
	}
	// The protocol code has a node of its own with all bits set.
	if n = (n + try) | fileBit; n == ^uint64(0) {
		n = fileBit
	}
	return n
}

// dirNode returns the number of a directory below sha256, by its name.
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

// viewNode returns the number of the directory of a view, by its name.
func viewNode(name string) (uint64, bool) {
	view, err := strconv.ParseUint(name, 10, 64)
	if err != nil || view == 0 || view > maxView || strconv.FormatUint(view, 10) != name {
		return 0, false
	}
	return view<<viewShift | rootNode, true
}

// fileDigest returns the digest that a name in a directory stands for.
func fileDigest(dir uint64, name string) (digest.Digest, bool) {
	d, err := verify.ParseDigest(string(digest.SHA256) + ":" + name)
	if err != nil {
		return "", false
	}
	want, ok := dirNode(name[:2])
	return d, ok && want == dir
}

// node returns the node of a file, and makes and saves it if it is new.
// It returns errdefs.ErrDataLoss if the file had another size before, and
// errdefs.ErrResourceExhausted if there are too many files.
func (fs *fileSystem) node(view uint64, d, identity digest.Digest, size int64) (*node, error) {
	n, err := fs.place(view, d, identity, size)
	if err != nil {
		return nil, err
	}
	if n.size != size {
		return nil, fmt.Errorf("file %s has %d bytes, and had %d before: %w", d, size, n.size, errdefs.ErrDataLoss)
	}
	if n.saved.Load() {
		return n, nil
	}
	// Two may write the same slot: it is the same content.
	if err := fs.state.saveNode(n); err != nil {
		return nil, err
	}
	n.saved.Store(true)
	return n, nil
}

// place finds the node of an identity, or a free number and slot for it.
func (fs *fileSystem) place(view uint64, d, identity digest.Digest, size int64) (*node, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for try := range uint64(maxProbes) {
		id := fileNode(identity, try)
		n, ok := fs.nodes[id]
		if !ok {
			if len(fs.nodes) >= maxNodes {
				return nil, fmt.Errorf("more than %d files were looked up in the lazy mount; restart the node to begin anew: %w", maxNodes, errdefs.ErrResourceExhausted)
			}
			n = &node{id: id, view: view, digest: d, size: size, slot: fs.nextSlot}
			fs.nextSlot++
			fs.nodes[id] = n
			return n, nil
		}
		if n.view == view && n.digest == d {
			return n, nil
		}
	}
	return nil, fmt.Errorf("file %s: the numbers it could have are taken: %w", d, errdefs.ErrResourceExhausted)
}

// known returns a node by its number, or nil.
func (fs *fileSystem) known(id uint64) *node {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.nodes[id]
}

// lookAgain says whether it is time to look whether the file has become an object. Who reads it from
// the source meanwhile gets the same bytes.
func (n *node) lookAgain() bool {
	now, last := time.Now().UnixNano(), n.looked.Load()
	return now-last > int64(100*time.Millisecond) && n.looked.CompareAndSwap(last, now)
}
