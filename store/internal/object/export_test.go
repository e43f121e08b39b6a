package object

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
)

// SetSettleTime changes how long a directory must not have changed before its state is recorded.
func (s *Objects) SetSettleTime(d time.Duration) { s.settleTime = d }

// State returns the state of a directory of objects.
func State(t *testing.T, root *dirs.Root, name string) meta.DirState {
	t.Helper()
	first, err := hex.DecodeString(name)
	if err != nil {
		t.Fatal(err)
	}
	top, err := root.Open(topPath)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	state, err := (&Objects{top: top}).state(first[0])
	if err != nil {
		t.Fatal(err)
	}
	return state
}
