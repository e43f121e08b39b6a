package hydrate

import (
	"fmt"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
)

// What was staged or present before is not counted as arrived.
func TestArrived(t *testing.T) {
	for name, tt := range map[string]struct {
		before, now Progress
		want        int64
	}{
		"goes on":            {Progress{State: StateDownloading, Done: 10}, Progress{State: StateDownloading, Done: 15}, 5},
		"ends":               {Progress{State: StateVerifying, Done: 10}, Progress{State: StateComplete, Done: 15}, 5},
		"begins with staged": {Progress{State: StateWaiting}, Progress{State: StateDownloading, Done: 15}, 0},
		"begins and ends":    {Progress{State: StateWaiting}, Progress{State: StateComplete, Done: 15}, 15},
		"was present":        {Progress{State: StateWaiting}, Progress{State: StatePresent, Done: 15}, 0},
		"from scratch":       {Progress{State: StateDownloading, Done: 15}, Progress{State: StateDownloading, Done: 5}, 0},
	} {
		if got := arrived([]Progress{tt.before}, []Progress{tt.now}); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

// A slow transfer does not make an engine busy; several may.
func TestBusy(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		all  []*hydration
		want bool
	}{
		"nothing":    {nil, false},
		"just begun": {[]*hydration{{started: time.Now()}}, true},
		"stalled":    {[]*hydration{{started: old}}, false},
		"slow":       {[]*hydration{{started: old, rate: 2 << 10}}, false},
		"together":   {[]*hydration{{started: old, rate: 600 << 10}, {started: old, rate: 600 << 10}}, true},
	} {
		e := &Engine{hydrations: map[string]*hydration{}}
		for i, h := range tt.all {
			e.hydrations[fmt.Sprint(i)] = h
		}
		if got := e.Busy(); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// What most of the work waited for limits it; hashing in order does when it never stops.
func TestSlowest(t *testing.T) {
	spent := func(network, hash, inOrder, disk, paced time.Duration) (s transfer.Spent) {
		s[transfer.Network], s[transfer.Hash], s[transfer.InOrder], s[transfer.Disk], s[transfer.Paced] = network, hash, inOrder, disk, paced
		return s
	}
	const s = time.Second
	for name, tt := range map[string]struct {
		ran  []transfer.Spent
		want Limit
	}{
		"nothing ran":           {nil, ""},
		"network":               {[]transfer.Spent{spent(8*s, 0, s/3, s/5, 0)}, LimitNetwork},
		"rate":                  {[]transfer.Spent{spent(8*s, 0, s/3, s/5, 7*s)}, LimitRate},
		"chunks are hashed":     {[]transfer.Spent{spent(2*s, 3*s, 0, s, 0)}, LimitHash},
		"a file is hashed":      {[]transfer.Spent{spent(3*s, 0, s*9/10, s, 0)}, LimitHash},
		"one of two is hashed":  {[]transfer.Spent{spent(3*s, 0, s*9/10, s, 0), spent(3*s, 0, 0, s, 0)}, LimitNetwork},
		"the disk writes":       {[]transfer.Spent{spent(2*s, s, s/2, 5*s, 0)}, LimitDisk},
		"only the disk is left": {[]transfer.Spent{spent(0, 0, 0, s, 0)}, LimitDisk},
	} {
		if got := slowest(tt.ran); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
