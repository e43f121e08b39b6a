package ctrd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWorse compares states of containerd: only what was well can get worse.
func TestWorse(t *testing.T) {
	before := Health{Version: "1", Parts: map[string]string{"a": "", "zfs": "skip", "gone": "", "CRI: NetworkReady": ""}}
	after := Health{Version: "1", Parts: map[string]string{"a": "broken", "zfs": "skip this", "new": "", "bad": "no", "CRI: NetworkReady": "cni"}}
	if d := cmp.Diff([]string{"CRI: NetworkReady: cni", "a: broken", "bad: no", "gone: it is gone"}, after.Worse(before)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	after.Version = "2"
	if d := cmp.Diff([]string{"CRI: NetworkReady: cni", "a: broken", "bad: no"}, after.Worse(before)); d != "" {
		t.Errorf("another version (-want +got):\n%s", d)
	}
	// It has just started: nothing is known of the conditions of CRI.
	before = Health{Version: "1", Parts: map[string]string{"a": "", "CRI: CRI": "it does not answer"}}
	after = Health{Version: "1", Parts: map[string]string{"a": "", "CRI: NetworkReady": "cni", "CRI: RuntimeReady": ""}}
	if got := after.Worse(before); got != nil {
		t.Errorf("after a CRI that did not answer: %q", got)
	}
}
