package huggingface

import (
	"cmp"
	"sync"

	"github.com/opencontainers/go-digest"
)

// maxDigests limits each half of the digests. Both take about 8 MiB at most: a key has a name of at most 255 bytes.
const maxDigests = 8 << 10

// A blob is a file in git. Its object ID is a SHA-1, and two files can be made that have the same. The author of one
// must not decide what the other is in a repository of others, so a digest counts in one repository only. There, git
// itself has one file for an ID, in all commits and at all paths.
type blob struct {
	repo, oid string
	size      int64
}

// digests are those of small files whose bytes have matched their object IDs. With them, a resolve continues where the
// last one has failed, and reads of another commit only what has changed. The zero value works.
type digests struct {
	mu          sync.Mutex
	recent, old map[blob]digest.Digest // guarded by mu; at most maxDigests each
}

// get returns a digest, or "".
func (d *digests) get(b blob) digest.Digest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(d.recent[b], d.old[b])
}

// put keeps a digest. What was not put again since the last maxDigests ones is forgotten.
func (d *digests) put(b blob, of digest.Digest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.recent) >= maxDigests {
		d.recent, d.old = nil, d.recent
	}
	if d.recent == nil {
		d.recent = map[blob]digest.Digest{}
	}
	d.recent[b] = of
}
