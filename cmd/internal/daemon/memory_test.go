package daemon

import (
	"runtime/debug"
	"testing"

	"github.com/ballast-dev/ballast/convert"
)

// TestMemoryLimit checks that a memory limit in the environment of the daemon has precedence, and that
// otherwise the daemon sets one, with the memory of conversions in it.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 40)
	defer debug.SetMemoryLimit(before)
	defer convert.OnReserve(func(int64) {})
	t.Setenv("GOMEMLIMIT", "1TiB")
	limitMemory(1 << 20)
	if n := debug.SetMemoryLimit(-1); n != 1<<40 {
		t.Errorf("the limit of 1 TiB is %d", n)
	}
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(1 << 20)
	for _, reserve := range []int64{0, 1, memoryStep, memoryStep, -memoryStep - 1, -memoryStep} {
		convert.Reserve(reserve)
		n, least := debug.SetMemoryLimit(-1), int64(goMemory+1<<20)
		convert.OnReserve(func(used int64) { least += used })
		limitMemory(1 << 20)
		if n < least || n >= least+memoryStep {
			t.Errorf("after %d bytes more: the limit is %d, want %d or a little more", reserve, n, least)
		}
	}
}
