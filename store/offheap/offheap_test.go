package offheap

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPool checks that memory is reused, kept while some is in use, and unmapped some time after all of
// it was returned.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1 << 20)
		take := func() []byte {
			t.Helper()
			b, err := p.Take()
			if err != nil || len(b) != 1<<20 {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
			b[0]++
			return b
		}
		a, b := take(), take()
		kept := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.spare)
		}
		p.Put(a[:1])
		if c := take(); &c[0] != &a[0] {
			t.Error("memory is not used again")
		}
		p.Put(b)
		time.Sleep(2 * rest)
		if n := kept(); n != 1 {
			t.Errorf("%d pieces are kept while one is in use, want 1", n)
		}
		p.Put(a)
		if n := kept(); n != 2 {
			t.Errorf("%d pieces are kept, want 2", n)
		}
		time.Sleep(2 * rest)
		if n := kept(); n != 0 {
			t.Errorf("%d unused pieces are kept", n)
		}
		p.Put(take())
	})
}
