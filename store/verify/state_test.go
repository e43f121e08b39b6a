package verify_test

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// steps cuts p and returns its steps, as a converter does.
func steps(t testing.TB, p []byte, cuts []int) (out []verify.Step, parts [][]byte) {
	t.Helper()
	h, before, off := verify.NewHash(), verify.State(nil), 0
	for _, cut := range cuts {
		if cut <= off || cut >= len(p) {
			continue
		}
		h.Write(p[off:cut])
		after, err := h.State()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, verify.Step{Off: int64(off), Before: before, After: after})
		parts = append(parts, p[off:cut])
		before, off = after, cut
	}
	out = append(out, verify.Step{Off: int64(off), Before: before, Whole: digest.NewDigestFromBytes(digest.SHA256, sum(p))})
	return out, append(parts, p[off:])
}

func sum(p []byte) []byte {
	s := sha256.Sum256(p)
	return s[:]
}

// FuzzSteps checks that the steps of any cuts match the bytes and no others, and that the digest is
// that of crypto/sha256.
func FuzzSteps(f *testing.F) {
	f.Add([]byte("bytes of a file"), uint64(1), 3, byte(1))
	f.Add(bytes.Repeat([]byte{0}, 64), uint64(2), 1, byte(0x80))
	f.Add(bytes.Repeat([]byte("0123456789abcdef"), 100), uint64(3), 40, byte(4))
	f.Fuzz(func(t *testing.T, p []byte, seed uint64, n int, flip byte) {
		r := rand.New(rand.NewPCG(seed, 0))
		var cuts []int
		for range max(0, min(n, 50)) {
			cuts = append(cuts, r.IntN(len(p)+1))
		}
		slices.Sort(cuts)
		all, parts := steps(t, p, cuts)
		for _, i := range r.Perm(len(all)) {
			if err := all[i].Verify(parts[i]); err != nil {
				t.Fatalf("step %d of %d: %v", i, len(all), err)
			}
		}
		if len(p) == 0 || flip == 0 {
			return
		}
		at := r.IntN(len(p))
		i, _ := slices.BinarySearchFunc(all, int64(at), func(s verify.Step, at int64) int {
			if s.Off > at {
				return 1
			}
			return -1
		})
		wrong := bytes.Clone(parts[i-1])
		wrong[at-int(all[i-1].Off)] ^= flip
		if err := all[i-1].Verify(wrong); !errdefs.IsDataLoss(err) {
			t.Fatalf("step %d with another byte: %v", i-1, err)
		}
	})
}

// FuzzLyingSteps checks that invented states verify no other file: if all steps match, the file has the
// digest.
func FuzzLyingSteps(f *testing.F) {
	f.Add([]byte("bytes of a file that is longer than one block of sha256, which has sixty-four bytes"), []byte("another"), 10)
	f.Fuzz(func(t *testing.T, p, state []byte, cut int) {
		if len(p) < 2 {
			return
		}
		cut = 1 + max(0, cut)%(len(p)-1)
		lie := make(verify.State, sha256.Size+cut%sha256.BlockSize)
		copy(lie, state)
		whole := digest.FromString("some digest")
		first := verify.Step{After: lie}
		last := verify.Step{Off: int64(cut), Before: lie, Whole: whole}
		if first.Verify(p[:cut]) == nil && last.Verify(p[cut:]) == nil && digest.FromBytes(p) != whole {
			t.Fatal("a file has a digest that is not its own")
		}
	})
}

// TestStateFormat checks that Resume makes the state that crypto/sha256 encodes, for each number of
// pending bytes. It fails if a Go release changes the encoding.
func TestStateFormat(t *testing.T) {
	p := bytes.Repeat([]byte("ballast!"), 32)
	for n := 1; n <= len(p); n++ {
		h := verify.NewHash()
		h.Write(p[:n])
		s, err := h.State()
		if err != nil || !s.Valid(int64(n)) {
			t.Fatalf("%d bytes: state of %d bytes, %v", n, len(s), err)
		}
		g, err := verify.Resume(s, int64(n))
		if err != nil {
			t.Fatal(err)
		}
		g.Write(p)
		if want := digest.FromBytes(append(p[:n:n], p...)); g.Digest() != want {
			t.Fatalf("%d bytes: resumed to %s, want %s", n, g.Digest(), want)
		}
	}
	for _, bad := range []struct {
		s verify.State
		n int64
	}{{nil, 1}, {make(verify.State, 32), 0}, {make(verify.State, 32), -64}, {make(verify.State, 32), 63}, {make(verify.State, 33), 64}, {make(verify.State, 95), 64}} {
		if _, err := verify.Resume(bad.s, bad.n); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d bytes as state after %d: %v", len(bad.s), bad.n, err)
		}
	}
}
