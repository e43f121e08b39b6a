package daemon

import (
	"runtime/debug"
	"testing"
)

// A memory limit in the environment of the daemon has precedence; otherwise the daemon sets one.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 40)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "1TiB")
	limitMemory(1 << 20)
	if n := debug.SetMemoryLimit(-1); n != 1<<40 {
		t.Errorf("the limit of 1 TiB is %d", n)
	}
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(1 << 20)
	if n := debug.SetMemoryLimit(-1); n != goMemory+1<<20 {
		t.Errorf("the limit is %d, want %d", n, goMemory+1<<20)
	}
}
