package hydrate

import "testing"

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
